//! The HTTP surface as an OpenAPI 3.1 document, for publishers' tools and operators' scripts. Both listeners serve it.

use bytes::Bytes;
use http::StatusCode;

use crate::intake::reply;
use crate::intake::server::Reply;

/// The document. Operations tagged `publisher` are on the intake listener, those tagged `admin` on the admin listener.
pub const DOCUMENT: &str = include_str!("openapi.json");

/// Where it is served.
pub const PATH: &str = "/openapi.json";

/// 200 with the document.
pub(crate) fn reply() -> Reply {
    reply::json(StatusCode::OK, Bytes::from_static(DOCUMENT.as_bytes()))
}

#[cfg(test)]
pub(crate) mod tests {
    use http::Method;
    use serde_json::Value;

    use super::*;

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    /// Asks a listener's router for each operation of a tag; the names it answered, sorted. Each must be the operation's own.
    pub(crate) fn operations(tag: &str, route: impl Fn(Method, &str) -> Option<&'static str>) -> Vec<&'static str> {
        let document = document();
        let mut names = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                if operation["tags"][0] != tag {
                    continue;
                }
                let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap();
                let path = path.replace("{lead_id}", "0195a0c2-7d3e-7c4b-8a1f-0242ac120002");
                let path = path.replace("{campaign}", "solar").replace("{buyer}", "sunco");
                let name = route(method, &path).unwrap_or_else(|| panic!("{path} is in the document and has no route"));
                assert_eq!(operation["operationId"], name);
                names.push(name);
            }
        }
        names.sort_unstable();
        names
    }

    #[test]
    fn the_document_is_of_this_version() {
        let document = document();
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    }
}
