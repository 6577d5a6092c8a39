//! `intake.tls`: a certificate chain and its private key, read from files that are replaced while the gateway runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;

use super::item::Reader;
use super::problem::Problem;
use super::tree::{self, Source};
use crate::domain::routing::Secret;
use crate::intake::server::PROTOCOLS;

const CERT_RIGHT: &str = "the path of a PEM file: the certificate of this server, then those that vouch for it";
const KEY_RIGHT: &str = "\"file:PATH\" of a PEM file with the private key of the certificate, without a pass phrase";

/// The certificate that the intake listener shows, and where it came from. Clones share what is in force.
#[derive(Clone)]
pub struct Tls {
    cert: PathBuf,
    key: KeySource,
    in_force: Arc<InForce>,
    server: Arc<ServerConfig>,
    /// Held until the pair is in force: two reloads at once must not swap their order.
    reloading: Arc<Mutex<()>>,
}

/// What handshakes ask for; each takes the pair that is in force at its beginning.
struct InForce(ArcSwap<CertifiedKey>);

#[derive(Clone)]
enum KeySource {
    File(PathBuf),
    /// Stood in the environment, or in the configuration itself: there is no file to read again.
    Text(Secret),
}

/// What is wrong with a pair.
enum Fault {
    Cert(String),
    Key(String),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cert", &self.cert).finish_non_exhaustive()
    }
}

impl fmt::Debug for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InForce")
    }
}

impl ResolvesServerCert for InForce {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl Tls {
    /// `{ cert = "...", key = "file:..." }`; `None` after a problem was noted.
    pub(super) fn read(reader: Reader<'_>) -> Option<Self> {
        let cert_item = reader.required("cert", CERT_RIGHT);
        let key_item = reader.required("key", KEY_RIGHT).map(super::item::Item::secret);
        reader.finish();
        let (cert_item, key_item) = (cert_item?, key_item?);
        let path = cert_item.word()?;
        // The key is written this way; nobody should have to know that the certificate need not be.
        let cert = cert_item.path(path.strip_prefix("file:").unwrap_or(path));
        let text = key_item.text()?;
        let key = match text.strip_prefix("file:") {
            Some(path) => KeySource::File(key_item.path(path)),
            None => KeySource::Text(key_item.secret_text()?),
        };
        let opened = pair(&cert, &key).and_then(|pair| {
            let in_force = Arc::new(InForce(ArcSwap::from(pair)));
            let server = server(Arc::clone(&in_force)).map_err(|error| Fault::Key(error.to_string()))?;
            Ok(Self { cert, key, in_force, server, reloading: Arc::default() })
        });
        match opened {
            Ok(tls) => return Some(tls),
            Err(Fault::Cert(wrong)) => cert_item.fail(wrong, CERT_RIGHT),
            Err(Fault::Key(wrong)) => key_item.fail(wrong, KEY_RIGHT),
        }
        None
    }

    /// Reads both files again; new handshakes show the new certificate, connections that exist go on. True when it is another
    /// pair than before. Blocks on the files.
    ///
    /// # Errors
    /// The pair is no good; the one in force stays.
    pub fn reload(&self) -> Result<bool, Box<Problem>> {
        let _turn = self.reloading.lock();
        let fresh = pair(&self.cert, &self.key).map_err(|fault| Box::new(self.problem(fault)))?;
        // A key that is new comes with a certificate that is: the certificate holds its public half.
        let is_new = self.in_force.0.load().cert != fresh.cert;
        if is_new {
            self.in_force.0.store(fresh);
        }
        Ok(is_new)
    }

    /// The files to watch.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        let key = match &self.key {
            KeySource::File(path) => Some(path.as_path()),
            KeySource::Text(_) => None,
        };
        std::iter::once(self.cert.as_path()).chain(key).collect()
    }

    /// The server's side of a handshake.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    fn problem(&self, fault: Fault) -> Problem {
        let (key, right, wrong, path) = match (fault, &self.key) {
            (Fault::Key(wrong), KeySource::File(path)) => ("intake.tls.key", KEY_RIGHT, wrong, path),
            (Fault::Key(wrong), KeySource::Text(_)) => ("intake.tls.key", KEY_RIGHT, wrong, &self.cert),
            (Fault::Cert(wrong), _) => ("intake.tls.cert", CERT_RIGHT, wrong, &self.cert),
        };
        Problem { key: key.to_owned(), ..Source::file(path).problem(None, wrong, right) }
    }
}

/// TLS 1.2 and 1.3, no client certificates, nothing of a request before the handshake is complete.
fn server(in_force: Arc<InForce>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(in_force);
    server.alpn_protocols = PROTOCOLS.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(server))
}

/// Reads the pair and proves that key and certificate belong together. Errors never quote what was read.
fn pair(cert: &Path, key: &KeySource) -> Result<Arc<CertifiedKey>, Fault> {
    let read = |path: &Path| tree::read_file(path).map_err(|problem| format!("{} {}", problem.file, problem.wrong));
    let text = read(cert).map_err(Fault::Cert)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let chain = chain.map_err(|_| Fault::Cert(format!("{} is no PEM", cert.display())))?;
    if chain.is_empty() {
        return Err(Fault::Cert(format!("{} holds no certificate", cert.display())));
    }
    let (text, named) = match key {
        KeySource::File(path) => (Secret::new(&read(path).map_err(Fault::Key)?), path.display().to_string()),
        KeySource::Text(text) => (text.clone(), "what stands here".to_owned()),
    };
    let key = PrivateKeyDer::from_pem_slice(text.expose().as_bytes())
        .map_err(|_| Fault::Key(format!("{named} holds no private key that can be read")))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map(Arc::new).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            Fault::Key(format!("{named} does not belong to the certificate in {}", cert.display()))
        }
        rustls::Error::InvalidCertificate(_) => {
            Fault::Cert(format!("{} begins with something that is no certificate", cert.display()))
        }
        _ => Fault::Key(format!(
            "{named} holds a private key of a kind that is not supported: use ECDSA, RSA or Ed25519"
        )),
    })
}
