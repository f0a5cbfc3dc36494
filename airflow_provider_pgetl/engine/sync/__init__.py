"""What moves data: the copy, the catch-up, the apply stream and the hand-over between them."""
