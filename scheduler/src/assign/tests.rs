//! Small problems against plain enumeration, limits, and errors.
