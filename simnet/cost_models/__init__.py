"""Cost models: closed-form and device costs (`costs`), fitted times (`calibration`), error intervals (`evidence`)."""
