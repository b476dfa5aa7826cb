"""The folder of a root that is Headwater's own, whatever is kept there. Each layout names what it has in it."""

OWN_FOLDER = ".headwater"
