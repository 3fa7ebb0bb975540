"""Help for the tests of applications that use lanelog: the pytest plugin `lanelog.testing.plugin`.

Nothing else of the library imports it. pytest loads the plugin by itself where lanelog is installed.
"""
