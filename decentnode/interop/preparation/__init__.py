"""The files of ImageNet, WMT14 and OpenWebText as they are published become those that data sets read."""
