//! store/embedded
