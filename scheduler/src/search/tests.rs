//! Published examples, random graphs against plain enumeration, and the hooks.
