//! Files of the status page, served unchanged. There is no build step.
//!
//! `index.html` has the structure and the templates. `app.js` receives the states and passes them to the
//! modules that render them (`verdict`, `channels`, `failures`, `endpoints`, `charts`, `tree`, `news`,
//! `resources`). Names
//! from data are only inserted as text. The page requests only these files and the API, so [`POLICY`] forbids everything else.

/// File of the page.
pub(super) struct PageFile {
    /// Request path of the file.
    pub(super) path: &'static str,
    /// Value of its `content-type` header.
    pub(super) kind: &'static str,
    /// Content of the file.
    pub(super) body: &'static str,
}

/// Value of the `content-security-policy` header: no inline script or style, and no other origins.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All files of the page.
pub(super) const FILES: [PageFile; 14] = [
    PageFile { path: "/", kind: HTML, body: include_str!("index.html") },
    PageFile { path: "/style.css", kind: CSS, body: include_str!("style.css") },
    PageFile { path: "/app.js", kind: SCRIPT, body: include_str!("app.js") },
    PageFile { path: "/format.js", kind: SCRIPT, body: include_str!("format.js") },
    PageFile { path: "/verdict.js", kind: SCRIPT, body: include_str!("verdict.js") },
    PageFile { path: "/channels.js", kind: SCRIPT, body: include_str!("channels.js") },
    PageFile { path: "/failures.js", kind: SCRIPT, body: include_str!("failures.js") },
    PageFile { path: "/endpoints.js", kind: SCRIPT, body: include_str!("endpoints.js") },
    PageFile { path: "/history.js", kind: SCRIPT, body: include_str!("history.js") },
    PageFile { path: "/charts.js", kind: SCRIPT, body: include_str!("charts.js") },
    PageFile { path: "/tree.js", kind: SCRIPT, body: include_str!("tree.js") },
    PageFile { path: "/resources.js", kind: SCRIPT, body: include_str!("resources.js") },
    PageFile { path: "/news.js", kind: SCRIPT, body: include_str!("news.js") },
    PageFile { path: "/icon.svg", kind: "image/svg+xml", body: include_str!("icon.svg") },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The bundle stays small, and refers only to files in it.
    #[test]
    fn the_page_is_small_and_complete() {
        let size: usize = FILES.iter().map(|file| file.body.len()).sum();
        assert!(size < 120_000, "the page has {size} bytes");
        for file in &FILES {
            for asked in asked_for(file.body) {
                assert!(FILES.iter().any(|file| file.path == asked), "{} asks for {asked}", file.path);
            }
            assert!(!file.body.contains("innerHTML"), "{} writes markup", file.path);
        }
    }

    /// Returns the paths that a file imports or links to.
    fn asked_for(body: &str) -> Vec<String> {
        let after = |mark: &str| -> Vec<String> {
            body.split(mark)
                .skip(1)
                .filter_map(|rest| rest.split(['\'', '"']).next())
                .map(|path| format!("/{path}"))
                .collect()
        };
        ["from './", "src=\"/", "href=\"/"].iter().flat_map(|mark| after(mark)).collect()
    }
}
