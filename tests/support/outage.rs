//! An outage, or a failover, in one line of a test.

/// A TCP proxy before a server: an outage in one line of a test.
#[derive(Debug)]
pub struct Proxy {
    way: tokio::sync::watch::Sender<Way>,
}

/// Where a proxy leads.
#[derive(Debug, Clone)]
struct Way {
    is_cut: bool,
    is_stalled: bool,
    target: String,
}

/// `host:port` of a URL.
fn address_of(url: &str) -> String {
    let parsed = reqwest::Url::parse(url).expect("a URL");
    let host = parsed.host_str().expect("a host");
    let port = parsed.port().unwrap_or(if parsed.scheme() == "redis" { 6379 } else { 3306 });
    format!("{host}:{port}")
}

impl Proxy {
    /// Stands before the server of a URL; answers the URL that leads through it.
    pub async fn before(url: &str) -> (Self, String) {
        let target = address_of(url);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let through = listener.local_addr().expect("an address");
        let (way, watch) =
            tokio::sync::watch::channel(Way { is_cut: false, is_stalled: false, target: target.clone() });
        tokio::spawn(async move {
            while let Ok((mut inward, _)) = listener.accept().await {
                let mut watch = watch.clone();
                tokio::spawn(async move {
                    let Way { is_cut, mut is_stalled, target } = watch.borrow_and_update().clone();
                    if is_cut {
                        return;
                    }
                    let Ok(mut outward) = tokio::net::TcpStream::connect(&target).await else { return };
                    let mut copy = std::pin::pin!(tokio::io::copy_bidirectional(&mut inward, &mut outward));
                    loop {
                        tokio::select! {
                            _ = &mut copy, if !is_stalled => return,
                            changed = watch.changed() => {
                                let way = watch.borrow_and_update();
                                if changed.is_err() || way.is_cut || way.target != target {
                                    return;
                                }
                                is_stalled = way.is_stalled;
                            }
                        }
                    }
                });
            }
        });
        (Self { way }, url.replacen(&target, &through.to_string(), 1))
    }

    /// Every connection breaks, new ones are closed at once.
    pub fn cut(&self) {
        self.way.send_modify(|way| way.is_cut = true);
    }

    /// Every connection stays open, new ones are taken, and nothing comes through: a server that has been stopped.
    pub fn stall(&self) {
        self.way.send_modify(|way| way.is_stalled = true);
    }

    /// Everything goes through again.
    pub fn mend(&self) {
        self.way.send_modify(|way| (way.is_cut, way.is_stalled) = (false, false));
    }

    /// Every connection breaks, new ones go to another server.
    pub fn turn_to(&self, url: &str) {
        self.way.send_modify(|way| way.target = address_of(url));
    }
}
