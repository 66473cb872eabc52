"""Cost models: closed forms and devices (`costs`), fitted curves (`calibration`), errors (`evidence`)."""
