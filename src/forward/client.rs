//! The HTTP client to the buyers: it does what it is told, once, and nothing on its own.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, ClientBuilder};

use super::resolve::GuardedResolver;

/// Shorter than the keep-alive of the servers in common use (5 s and more), so that a POST seldom meets a connection that the
/// buyer is just closing (F47).
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Idle connections kept for one buyer.
const POOL_IDLE_MAX: usize = 64;
/// Ends connects that nobody waits for any more; the buyer's own deadline usually ends them sooner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// More response headers than this are an attack (F49).
const HEADERS_MAX: usize = 100;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ForwardSetupError {
    /// TLS or the resolver could not be set up.
    #[error("the client for buyers cannot be set up: {0}")]
    Client(#[source] reqwest::Error),
    /// rustls and its provider do not fit together.
    #[error("TLS for buyers cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Builds the client.
///
/// # Errors
/// [`ForwardSetupError`]; nothing was sent.
pub fn build(resolver: GuardedResolver) -> Result<Client, ForwardSetupError> {
    // An error means that another part of the process has installed a provider already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match options(resolver.clone()).build() {
        Ok(client) => Ok(client),
        // The usual cause is a machine without any certificate authorities. Buyers on plain http must work there too, so
        // the gateway starts, and each https buyer is refused in its handshake.
        Err(error) => {
            tracing::warn!(%error, "no certificate authorities to check buyers with: https buyers cannot be reached");
            without_authorities(resolver)
        }
    }
}

/// A client for our own listeners: commands and tests ask a gateway with it.
///
/// # Errors
/// [`ForwardSetupError`]; nothing was sent.
pub fn plain(timeout: Duration) -> Result<Client, ForwardSetupError> {
    // They speak plain http, so no certificate authorities are read.
    Client::builder()
        .no_proxy()
        .timeout(timeout)
        .tls_backend_preconfigured(no_authorities()?)
        .build()
        .map_err(ForwardSetupError::Client)
}

fn without_authorities(resolver: GuardedResolver) -> Result<Client, ForwardSetupError> {
    options(resolver).tls_backend_preconfigured(no_authorities()?).build().map_err(ForwardSetupError::Client)
}

fn no_authorities() -> Result<rustls::ClientConfig, ForwardSetupError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth())
}

fn options(resolver: GuardedResolver) -> ClientBuilder {
    Client::builder()
        .user_agent(concat!("capgate/", env!("CARGO_PKG_VERSION")))
        // A redirect would post the lead, and the buyer's key, to another host (F50).
        .redirect(reqwest::redirect::Policy::none())
        // A POST that was written is never written again (P4, F47).
        .retry(reqwest::retry::never())
        .referer(false)
        .no_proxy()
        // Refused streams and GOAWAY bring repeats with them (F56).
        .http1_only()
        .http1_max_headers(HEADERS_MAX)
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(POOL_IDLE_MAX)
        .dns_resolver(resolver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_certificate_authorities_still_gets_a_client() {
        assert!(without_authorities(GuardedResolver::system(true)).is_ok());
    }
}
