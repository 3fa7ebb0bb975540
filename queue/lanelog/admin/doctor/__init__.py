"""`lanelog doctor`: what is wrong with the server, the account, the tables or a clock, each check in a module."""
