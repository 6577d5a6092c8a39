//! Talking to buyers over real sockets: what they do to us, and what we learn from it.
