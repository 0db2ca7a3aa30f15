"""What these tests leave behind is collected with them."""

from complaints import nothing_left_behind

__all__ = ["nothing_left_behind"]
