//! The page itself: its modules packed into one script, and its markup with or without data inside.

use std::fmt::Write;

const MARKUP: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");

/// The modules, each after those that it imports.
const MODULES: [(&str, &str); 24] = [
    ("dom.js", include_str!("page/dom.js")),
    ("format.js", include_str!("page/format.js")),
    ("source.js", include_str!("page/source.js")),
    ("filter.js", include_str!("page/filter.js")),
    ("store.js", include_str!("page/store.js")),
    ("color.js", include_str!("page/color.js")),
    ("grid.js", include_str!("page/grid.js")),
    ("scale.js", include_str!("page/scale.js")),
    ("chart.js", include_str!("page/chart.js")),
    ("export.js", include_str!("page/export.js")),
    ("panel.js", include_str!("page/panel.js")),
    ("curves.js", include_str!("page/curves.js")),
    ("list.js", include_str!("page/list.js")),
    ("runtable.js", include_str!("page/runtable.js")),
    ("compare.js", include_str!("page/compare.js")),
    ("timechart.js", include_str!("page/timechart.js")),
    ("ranks.js", include_str!("page/ranks.js")),
    ("evaluation.js", include_str!("page/evaluation.js")),
    ("log.js", include_str!("page/log.js")),
    ("runpage.js", include_str!("page/runpage.js")),
    ("parallel.js", include_str!("page/parallel.js")),
    ("trials.js", include_str!("page/trials.js")),
    ("sweeps.js", include_str!("page/sweeps.js")),
    ("main.js", include_str!("page/main.js")),
];

/// Content security policy of the served page: only its own script, styles and answers.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// All scripts as one. A module becomes a function that gives what it exports, so that names stay
/// within it; its comments and indentation stay behind.
pub(crate) fn script() -> String {
    let mut packed = "const modules = {};\n".to_owned();
    for (name, text) in MODULES {
        let (body, exports) = module(text);
        let _ = write!(
            packed,
            "modules[{name:?}] = (() => {{\n{body}return {{ {} }};\n}})();\n",
            exports.join(", ")
        );
    }
    packed
}

/// A module's text without `import` and `export`, and the names that it exports.
fn module(text: &str) -> (String, Vec<&str>) {
    let mut body = String::new();
    let mut exports = Vec::new();
    let mut is_comment = false;
    for line in text.lines().map(str::trim_start) {
        is_comment |= line.starts_with("/**");
        if is_comment || line.starts_with("//") || line.is_empty() {
            is_comment &= !line.ends_with("*/");
            continue;
        }
        let code = line.strip_prefix("export ").unwrap_or(line);
        if code.len() < line.len() {
            let mut words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            exports
                .extend(words.find(|word| !["async", "function", "const", "class"].contains(word)));
        }
        match imported(code) {
            Some((names, from)) => {
                let _ = writeln!(body, "const {names} = modules[\"{from}\"];");
            }
            None => body += &format!("{code}\n"),
        }
    }
    (body, exports)
}

/// `import { a } from "./b.js";` as `{ a }` and `b.js`.
fn imported(line: &str) -> Option<(&str, &str)> {
    let (names, from) = line.strip_prefix("import ")?.split_once(" from \"./")?;
    Some((names, from.strip_suffix("\";")?))
}

pub(crate) fn style() -> String {
    STYLE.to_owned()
}

/// The page of the server.
pub(crate) fn served() -> String {
    let head = "<link rel=\"stylesheet\" href=\"page.css\">\n<link rel=\"icon\" href=\"data:,\">\n\
        <script type=\"module\" src=\"page.js\"></script>";
    MARKUP.replacen("<!-- head -->", head, 1)
}

/// The page with its data inside; `nonce` marks our own script and styles, so that nothing else
/// runs.
pub(crate) fn whole(data: &serde_json::Value, nonce: &str) -> String {
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         img-src data:; base-uri 'none'; form-action 'none'"
    );
    let head = format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<style nonce=\"{nonce}\">\n{}\n</style>",
        style()
    );
    let tail = format!(
        "<script type=\"application/json\" id=\"data\">{}</script>\n\
         <script type=\"module\" nonce=\"{nonce}\">\n{}</script>",
        as_element(&data.to_string()),
        script()
    );
    let [before, inner] = MARKUP.split("<!-- head -->").collect::<Vec<_>>()[..] else {
        return String::new();
    };
    format!("{before}{head}{}", inner.replacen("<!-- data -->", &tail, 1))
}

/// JSON that cannot end the element it stands in, nor be read as the beginning of a comment.
fn as_element(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn modules_import_only_what_stands_before_them_and_exports() {
        let mut known: Vec<(&str, Vec<&str>)> = Vec::new();
        let imports = MODULES.iter().flat_map(|(_, text)| text.lines().filter_map(imported));
        assert!(imports.count() > MODULES.len(), "the imports are read");
        for (name, text) in MODULES {
            for (names, from) in text.lines().filter_map(imported) {
                let (_, exports) = known.iter().find(|(name, _)| *name == from).unwrap();
                for name in names.trim_matches(['{', '}', ' ']).split(", ") {
                    assert!(exports.contains(&name), "{name} of {from}");
                }
            }
            assert!(!text.contains("import {\n"), "{name}: an import is one line");
            known.push((name, module(text).1));
        }
        let script = script();
        assert!(!script.contains("\nexport ") && !script.contains("\nimport "));
        assert!(!script.contains("\n//") && !script.contains("\n/**") && !script.contains("\n "));
        assert!(script.len() < 140_000, "{} bytes: a page opens at once", script.len());
    }

    #[test]
    fn text_never_becomes_markup() {
        for (name, text) in MODULES {
            for word in
                ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function("]
            {
                assert!(!text.contains(word), "{name}: {word}");
            }
        }
        let page = whole(&json!({ "name": "</script><script>alert(1)</script><!--\u{2028}" }), "n");
        assert_eq!(page.matches("</script>").count(), 2, "its own");
        assert!(!page.contains("alert(1)</script>") && !page.contains('\u{2028}'));
        assert!(page.contains("\\u003c/script>\\u003cscript>alert(1)"));
    }

    #[test]
    fn the_page_holds_everything_and_the_served_one_names_it() {
        let page = whole(&json!({}), "abc");
        assert!(page.contains("nonce-abc") && page.contains("modules[") && !page.contains("<!-- "));
        assert!(served().contains("src=\"page.js\"") && style().contains(".plot"));
    }
}
