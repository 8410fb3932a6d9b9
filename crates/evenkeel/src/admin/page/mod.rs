//! The page's files, as they are served. There is no build step: what stands here is what the browser gets.
//!
//! `index.html` has all of the structure and the templates; `app.js` takes in the states and hands them to the parts that show them
//! (`verdict`, `endpoints`, `charts`, `tree`, `news`). Names out of data only ever become text. The page asks for nothing but these
//! files and the API beside them, so that [`POLICY`] can forbid everything else.

/// One file of the page.
pub(super) struct PageFile {
    /// Where it is asked for.
    pub(super) path: &'static str,
    /// Its `content-type`.
    pub(super) kind: &'static str,
    /// What it holds.
    pub(super) body: &'static str,
}

/// The `content-security-policy` that the page is written for: no inline script or style, nothing from elsewhere.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Every file.
pub(super) const FILES: [PageFile; 11] = [
    PageFile { path: "/", kind: HTML, body: include_str!("index.html") },
    PageFile { path: "/style.css", kind: CSS, body: include_str!("style.css") },
    PageFile { path: "/app.js", kind: SCRIPT, body: include_str!("app.js") },
    PageFile { path: "/format.js", kind: SCRIPT, body: include_str!("format.js") },
    PageFile { path: "/verdict.js", kind: SCRIPT, body: include_str!("verdict.js") },
    PageFile { path: "/endpoints.js", kind: SCRIPT, body: include_str!("endpoints.js") },
    PageFile { path: "/history.js", kind: SCRIPT, body: include_str!("history.js") },
    PageFile { path: "/charts.js", kind: SCRIPT, body: include_str!("charts.js") },
    PageFile { path: "/tree.js", kind: SCRIPT, body: include_str!("tree.js") },
    PageFile { path: "/news.js", kind: SCRIPT, body: include_str!("news.js") },
    PageFile { path: "/icon.svg", kind: "image/svg+xml", body: include_str!("icon.svg") },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The bundle stays small, and asks for nothing that is not in it.
    #[test]
    fn the_page_is_small_and_complete() {
        let size: usize = FILES.iter().map(|file| file.body.len()).sum();
        assert!(size < 100_000, "the page has {size} bytes");
        for file in &FILES {
            for asked in asked_for(file.body) {
                assert!(FILES.iter().any(|file| file.path == asked), "{} asks for {asked}", file.path);
            }
            assert!(!file.body.contains("innerHTML"), "{} writes markup", file.path);
        }
    }

    /// What a file imports or links to, as paths.
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
