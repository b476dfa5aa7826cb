"""The web page of a served catalog: what is in it, how it came about, and how to use it from elsewhere.

    Site (who is asking, form or link, errors as pages)
      └─ views (one function for each kind of page) ── Visit.ask ──> rest.Dispatcher (rights, workers, the catalog)
           └─ templates (Jinja2), cells and charts (pure: values to safe HTML)

Every question goes the way of the API's calls: the page can show and do only what its visitor's role can.
"""

from headwater.web.site import page

__all__ = ["page"]
