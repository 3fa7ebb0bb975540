"""Help for the tests of applications that use lanelog: the pytest plugin `lanelog.testing.plugin`.

The rest of the library does not import it. pytest loads the plugin by itself if lanelog is installed.
"""
