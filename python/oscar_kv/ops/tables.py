"""The columns of the int32 tables that operators read."""

RUN = ("first_row", "count", "page", "first_slot", "first_position")  # kernels/quantize/quantize_pages.h: PageRun
NEW_RUN = ("first_row", "count", "page", "first_slot", "first_position", "window_page")  # kernels/chunks/new_rows.h
TILE = ("kind", "out_row", "count", "page", "slot", "position")  # kernels/chunks/past_rows.h
CODES, WINDOW, NEW = range(3)  # kinds of TILE
