//! Names to addresses. The system's resolver blocks a thread and has no time limit of its own, so one buyer whose name never
//! resolves could use up all threads: here each name is looked up once at a time, however many leads wait for it (F51).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout};

use super::guard::is_public;

/// Lookups of different names under way at once.
const LOOKUPS_MAX: usize = 64;
/// How long a call waits for a lookup. The buyer's deadline usually ends it sooner.
const LOOKUP_WAIT: Duration = Duration::from_secs(5);
/// How long addresses are used again: long enough for a burst, short enough for a buyer that moves.
const ADDRESSES_KEPT: Duration = Duration::from_secs(5);
/// Names remembered. Only the routing file brings names in.
const NAMES_MAX: usize = 10_000;

type LookingUp = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;
type Lookup = dyn Fn(String) -> LookingUp + Send + Sync;

/// Why there is no address to call. Names are not part of it (P9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The name has no address, or nobody said so in time.
    #[error("the name does not resolve")]
    Unknown,
    /// It has none that may be called.
    #[error("the name resolves to refused addresses only")]
    Refused,
}

type Found = Result<Arc<[IpAddr]>, ResolveError>;

enum Entry {
    LookingUp(watch::Receiver<Option<Found>>),
    Known { addresses: Arc<[IpAddr]>, until: Instant },
}

struct Shared {
    lookup: Box<Lookup>,
    allow_private_addresses: bool,
    permits: Semaphore,
    names: Mutex<HashMap<String, Entry>>,
}

/// Resolves and filters; cheap to clone.
#[derive(Clone)]
pub struct GuardedResolver(Arc<Shared>);

impl GuardedResolver {
    /// Asks the system.
    #[must_use]
    pub fn system(allow_private_addresses: bool) -> Self {
        Self::new(allow_private_addresses, |name| {
            Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.map(|found| found.ip()).collect()) })
        })
    }

    /// Asks `lookup`.
    pub fn new(allow_private_addresses: bool, lookup: impl Fn(String) -> LookingUp + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared {
            lookup: Box::new(lookup),
            allow_private_addresses,
            permits: Semaphore::new(LOOKUPS_MAX),
            names: Mutex::default(),
        }))
    }

    /// The addresses of a name that may be called.
    ///
    /// # Errors
    /// [`ResolveError`]
    pub async fn addresses(&self, name: &str) -> Found {
        let found = match self.known_or_waiting(name) {
            Ok(addresses) => addresses,
            Err(mut waiting) => {
                let answered = timeout(LOOKUP_WAIT, waiting.wait_for(Option::is_some)).await;
                match answered {
                    Ok(Ok(found)) => found.clone().unwrap_or(Err(ResolveError::Unknown))?,
                    Ok(Err(_)) | Err(_) => return Err(ResolveError::Unknown),
                }
            }
        };
        if found.is_empty() {
            return Err(ResolveError::Unknown);
        }
        if self.0.allow_private_addresses {
            return Ok(found);
        }
        let allowed: Arc<[IpAddr]> = found.iter().copied().filter(|address| is_public(*address)).collect();
        if allowed.is_empty() { Err(ResolveError::Refused) } else { Ok(allowed) }
    }

    fn known_or_waiting(&self, name: &str) -> Result<Arc<[IpAddr]>, watch::Receiver<Option<Found>>> {
        let mut names = self.0.names.lock();
        match names.get(name) {
            Some(Entry::Known { addresses, until }) if Instant::now() < *until => return Ok(Arc::clone(addresses)),
            Some(Entry::LookingUp(waiting)) => return Err(waiting.clone()),
            Some(Entry::Known { .. }) | None => {}
        }
        if names.len() >= NAMES_MAX {
            names.retain(|_, entry| matches!(entry, Entry::LookingUp(_)));
        }
        let (answer, waiting) = watch::channel(None);
        names.insert(name.to_owned(), Entry::LookingUp(waiting.clone()));
        drop(names);
        tokio::spawn(Arc::clone(&self.0).look_up(name.to_owned(), answer));
        Err(waiting)
    }
}

impl Shared {
    /// Runs to its end even when nobody waits any more: a blocked thread cannot be called back, so its permit is not given
    /// to another before it is free.
    async fn look_up(self: Arc<Self>, name: String, answer: watch::Sender<Option<Found>>) {
        let found = match self.permits.acquire().await {
            Ok(_permit) => (self.lookup)(name.clone()).await.map(Arc::from).map_err(|_| ResolveError::Unknown),
            Err(_) => Err(ResolveError::Unknown),
        };
        let mut names = self.names.lock();
        match &found {
            Ok(addresses) => {
                let until = Instant::now() + ADDRESSES_KEPT;
                names.insert(name, Entry::Known { addresses: Arc::clone(addresses), until });
            }
            Err(_) => {
                names.remove(&name);
            }
        }
        drop(names);
        answer.send_replace(Some(found));
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.clone();
        Box::pin(async move {
            let found = resolver.addresses(name.as_str()).await?;
            // Port 0 is replaced by the URL's.
            let addresses: Vec<SocketAddr> = found.iter().map(|address| SocketAddr::new(*address, 0)).collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn counting(answer: fn(&str) -> Option<Vec<IpAddr>>) -> (Arc<AtomicUsize>, GuardedResolver) {
        let lookups = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&lookups);
        let resolver = GuardedResolver::new(false, move |name| {
            counter.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                match answer(&name) {
                    Some(addresses) => Ok(addresses),
                    None => std::future::pending().await,
                }
            })
        });
        (lookups, resolver)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn f51_a_name_that_never_resolves_costs_one_lookup_and_delays_nobody_else() {
        let (lookups, resolver) = counting(|name| (name != "stuck").then(|| vec![address("1.1.1.1")]));
        let stuck: Vec<_> = (0..64)
            .map(|_| {
                let resolver = resolver.clone();
                tokio::spawn(async move { resolver.addresses("stuck").await })
            })
            .collect();
        let began = Instant::now();
        assert_eq!(resolver.addresses("fine").await.as_deref(), Ok(&[address("1.1.1.1")][..]));
        assert_eq!(began.elapsed(), Duration::ZERO);
        for waiting in stuck {
            assert_eq!(waiting.await.unwrap(), Err(ResolveError::Unknown));
        }
        assert_eq!(began.elapsed(), LOOKUP_WAIT);
        assert_eq!(lookups.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn f51_addresses_are_kept_for_a_short_while() {
        let (lookups, resolver) = counting(|_| Some(vec![address("1.1.1.1")]));
        for _ in 0..10 {
            assert!(resolver.addresses("fine").await.is_ok());
        }
        assert_eq!(lookups.load(Ordering::SeqCst), 1);
        tokio::time::advance(ADDRESSES_KEPT).await;
        assert!(resolver.addresses("fine").await.is_ok());
        assert_eq!(lookups.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn f51_private_addresses_behind_a_name_are_refused() {
        let (_, resolver) = counting(|name| {
            Some(match name {
                "metadata" => vec![address("169.254.169.254"), address("fd00::1")],
                "mixed" => vec![address("10.0.0.1"), address("1.1.1.1")],
                _ => vec![],
            })
        });
        assert_eq!(resolver.addresses("metadata").await, Err(ResolveError::Refused));
        assert_eq!(resolver.addresses("mixed").await.as_deref(), Ok(&[address("1.1.1.1")][..]));
        assert_eq!(resolver.addresses("nothing").await, Err(ResolveError::Unknown));
    }
}
