"""Load packages of dlt: each is one transaction of a catalog. Needs the extra `dlt`; nothing else imports it."""
