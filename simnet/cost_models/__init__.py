"""Cost models: closed-form and device costs (`costs`), fitted curves (`calibration`), intervals (`evidence`)."""
