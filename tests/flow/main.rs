//! The whole gateway: from the POST to the books.
