"""Plug-ins that few need; `core/packages.py` names their modules, and nothing imports them."""
