"""Public fakes for the tests of applications that embed streamco."""
