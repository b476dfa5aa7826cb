"""The web page of a served catalog: its tables, their history, and snippets for other tools.

    Site (who is asking, form or link, errors as pages)
      └─ views (one function for each kind of page) ── RequestContext.ask ──> rest.Dispatcher (rights, workers)
           └─ templates (Jinja2), cells and charts (pure: values to safe HTML)

Every request goes through the API's dispatcher, so the page shows and does only what its visitor's role allows.
"""

from headwater.web.site import page

__all__ = ["page"]
