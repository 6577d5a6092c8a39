//! store/redis
