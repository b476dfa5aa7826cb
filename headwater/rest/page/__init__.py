"""The questions of the web page that no operation of the API answers: each a row with its permission and its handler.

They go through the dispatcher as the API's calls do, so the same rules hold and each is a line of the audit log. They
have no address of their own.
"""
