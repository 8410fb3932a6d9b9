//! Test components on real sockets: backends that can be killed, a scripted control plane, and misbehaving
//! peers.
//!
//! [`Backend`] and [`ControlPlane`] are tonic servers, each on a thread with its own runtime. They run while
//! a test blocks, use real time, and can be killed like a process. Ports are reserved across restarts. Both
//! record events and wait for conditions: [`Backend::wait_until`], [`ControlPlane::wait_until`]. A wait fails
//! after 30 seconds with a description of the state. Under paused time that bound is reached at once.
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! use testkit::net::echo::{EchoRequest, echo_client::EchoClient};
//! use testkit::net::{Backend, ControlPlane};
//!
//! let backends = [Backend::start().await, Backend::start().await];
//! let control = ControlPlane::start().await;
//! control.serve("orders", "pay", &backends.each_ref().map(Backend::address));
//! let bootstrap = control.bootstrap("my-node"); // for `xds:///orders`
//!
//! // A channel under test takes the place of this one.
//! let channel = tonic::transport::Endpoint::new(format!("http://{}", backends[0].address()))?.connect_lazy();
//! let mut client = EchoClient::new(channel);
//! let response = client.unary(EchoRequest { payload: b"hello".to_vec(), ..EchoRequest::default() }).await?;
//! assert_eq!(response.into_inner().backend, backends[0].name());
//! backends[0].wait_until(|backend| backend.in_flight() == 0).await;
//!
//! backends[0].kill();
//! control.set_endpoints("pay", &[backends[1].address()]);
//! backends[0].restart().await;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod backend;
pub mod certs;
pub mod control;
pub mod frames;
mod host;
pub mod proxy;
pub mod raw_stream;
pub mod soak;

use std::time::Duration;

use tokio::sync::Notify;

pub use backend::Backend;
pub use control::ControlPlane;
pub use host::Tls;

/// Echo service: client, server and messages.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod echo {
    include!("generated/evenkeel.test.rs");
}

/// Client of the CSDS service.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod csds {
    include!("generated/envoy.service.status.v3.rs");
}

#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod orca {
    include!("generated/xds.service.orca.v3.rs");
}

/// Maximum wait. Only a failing test reaches it.
const LONG: Duration = Duration::from_secs(30);

/// Waits until `look` returns a value. It is called again on each notification of `changed`. Panics with
/// `describe`.
async fn wait_until<T>(
    changed: &Notify,
    mut look: impl FnMut() -> Option<T>,
    describe: impl FnOnce() -> String,
) -> T {
    let found = async {
        loop {
            let change = changed.notified();
            tokio::pin!(change);
            // Register before the check, so that no notification is lost.
            change.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            change.await;
        }
    };
    let found = tokio::time::timeout(LONG, found).await;
    found.unwrap_or_else(|_| panic!("waited in vain; {}", describe()))
}
