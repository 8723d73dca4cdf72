//! Py
