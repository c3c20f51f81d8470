"""The service: a classifier behind HTTP, with a page to teach it in. Needs the extra `service`."""
