//! The part of XML that buyers' formats need: text found by path in an answer, names and text written into a request.
//!
//! Answers come from outside, so nothing is expanded: a document type is refused, entities other than the five of XML stay as
//! they were written, depth and attributes are bounded (F49).

use std::borrow::Cow;

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

/// Deepest nesting that is read.
const DEPTH_MAX: usize = 64;
/// Most attributes of one element that are read.
const ATTRIBUTES_MAX: usize = 128;

/// A well-formed document with one outermost element.
#[derive(Debug, Clone)]
pub struct Document<'a>(Cow<'a, str>);

impl<'a> Document<'a> {
    /// `None` when the text is not one well-formed document, brings a document type along, or is nested too deep.
    #[must_use]
    pub fn read(text: Cow<'a, str>) -> Option<Self> {
        scan(&text, None).is_ok().then_some(Self(text))
    }

    /// The text of the first element or attribute behind a path: `/response/status`, `/response/@code`. A number after a name
    /// picks one of several, from 0: `/response/error/1`. Prefixes of names may be left out. Empty text is text; `None` for
    /// what is not there.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        scan(&self.0, Some(&steps(path))).ok()?
    }
}

struct NotXml;

/// One step of a path.
struct Step<'p> {
    name: &'p str,
    /// Which of the elements of that name below one parent; none: the first that leads on.
    index: Option<usize>,
}

fn steps(path: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    for token in path.split('/').skip(1) {
        // No element's name begins with a digit.
        match (token.parse(), steps.last_mut()) {
            (Ok(index), Some(step)) => step.index = Some(index),
            _ => steps.push(Step { name: token, index: None }),
        }
    }
    steps
}

/// Reads the document. Without steps to its end, as a check; with steps until what they lead to is found.
fn scan(text: &str, wanted: Option<&[Step<'_>]>) -> Result<Option<String>, NotXml> {
    let mut reader = Reader::from_str(text);
    reader.config_mut().check_end_names = true;
    let mut finder = wanted.map(Finder::new);
    let mut depth = 0_usize;
    let mut has_root = false;
    loop {
        let event = reader.read_event().map_err(|_| NotXml)?;
        match &event {
            Event::Start(element) | Event::Empty(element) => {
                if depth == 0 && std::mem::replace(&mut has_root, true) || depth >= DEPTH_MAX {
                    return Err(NotXml);
                }
                let found = match &mut finder {
                    Some(finder) => finder.enter(depth, element)?,
                    None => check_attributes(element).map(|()| None)?,
                };
                if found.is_some() {
                    return Ok(found);
                }
                if matches!(event, Event::Start(_)) {
                    depth += 1;
                } else if let Some(found) = finder.as_mut().and_then(|finder| finder.leave(depth)) {
                    return Ok(Some(found));
                }
            }
            Event::End(_) => {
                depth = depth.checked_sub(1).ok_or(NotXml)?;
                if let Some(found) = finder.as_mut().and_then(|finder| finder.leave(depth)) {
                    return Ok(Some(found));
                }
            }
            Event::Text(text) => said(depth, finder.as_mut(), &text.xml10_content())?,
            Event::CData(text) => said(depth, finder.as_mut(), &text.xml10_content())?,
            Event::GeneralRef(reference) => {
                let name = reference.xml10_content();
                let text = match reference.resolve_char_ref().map_err(|_| NotXml)? {
                    Some(char) => Cow::Owned(char.to_string()),
                    None => match quick_xml::escape::resolve_xml_entity(&name) {
                        Some(text) => Cow::Borrowed(text),
                        None => Cow::Owned(format!("&{name};")),
                    },
                };
                said(depth, finder.as_mut(), &text)?;
            }
            Event::Decl(_) | Event::Comment(_) | Event::PI(_) => {}
            Event::Eof if depth == 0 && has_root => return Ok(None),
            // Entities are declared in a document type: "billion laughs".
            Event::DocType(_) | Event::Eof => return Err(NotXml),
        }
    }
}

fn said(depth: usize, finder: Option<&mut Finder<'_>>, text: &str) -> Result<(), NotXml> {
    if depth == 0 {
        return if text.trim().is_empty() { Ok(()) } else { Err(NotXml) };
    }
    if let Some(finder) = finder {
        finder.say(depth, text);
    }
    Ok(())
}

fn check_attributes(element: &BytesStart<'_>) -> Result<(), NotXml> {
    for (count, attribute) in element.attributes().enumerate() {
        if count >= ATTRIBUTES_MAX || attribute.is_err() {
            return Err(NotXml);
        }
    }
    Ok(())
}

/// Follows a path while the document goes by.
struct Finder<'p> {
    elements: &'p [Step<'p>],
    attribute: Option<&'p str>,
    /// How many elements of the present chain are on the path, from the outermost one.
    on_path: usize,
    /// How often each step's name has come below the present parent.
    seen: Vec<usize>,
    found: Option<String>,
}

impl<'p> Finder<'p> {
    fn new(steps: &'p [Step<'p>]) -> Self {
        let (elements, attribute) = match steps.split_last() {
            Some((last, before)) if last.name.starts_with('@') => (before, Some(&last.name[1..])),
            _ => (steps, None),
        };
        Self { elements, attribute, on_path: 0, seen: vec![0; elements.len()], found: None }
    }

    fn enter(&mut self, depth: usize, element: &BytesStart<'_>) -> Result<Option<String>, NotXml> {
        if depth != self.on_path || self.found.is_some() {
            return Ok(None);
        }
        if self.elements.is_empty() {
            // The empty path is the outermost element.
            self.on_path = 1;
            self.found = Some(String::new());
            return Ok(None);
        }
        let Some(step) = self.elements.get(depth) else { return Ok(None) };
        if !is_named(element.name().as_ref(), step.name) {
            return Ok(None);
        }
        let number = self.seen[depth];
        self.seen[depth] += 1;
        if step.index.is_some_and(|index| index != number) {
            return Ok(None);
        }
        self.on_path = depth + 1;
        self.seen[self.on_path..].fill(0);
        if self.on_path < self.elements.len() {
            return Ok(None);
        }
        let Some(attribute) = self.attribute else {
            self.found = Some(String::new());
            return Ok(None);
        };
        for found in element.attributes().flatten() {
            if is_named(found.key.as_ref(), attribute) {
                let value = found.normalized_value(XmlVersion::Implicit1_0).map_err(|_| NotXml)?;
                return Ok(Some(value.into_owned()));
            }
        }
        Ok(None)
    }

    fn say(&mut self, depth: usize, text: &str) {
        if let Some(found) = self.found.as_mut().filter(|_| depth == self.on_path) {
            found.push_str(text);
        }
    }

    /// The element at this depth ends.
    fn leave(&mut self, depth: usize) -> Option<String> {
        if depth + 1 != self.on_path {
            return None;
        }
        self.on_path = depth;
        self.found.take()
    }
}

fn is_named(name: &str, wanted: &str) -> bool {
    name == wanted || name.rsplit_once(':').is_some_and(|(_, local)| local == wanted)
}

/// May the text be the name of an element?
#[must_use]
pub fn is_name(text: &str) -> bool {
    let begins = |c: char| c.is_alphabetic() || c == '_';
    let goes_on = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    text.starts_with(begins) && text.chars().all(goes_on) && !text.ends_with(':')
}

/// The text as the name of an element: what a name cannot hold becomes `_`.
#[must_use]
pub fn as_name(text: &str) -> Cow<'_, str> {
    if is_name(text) {
        return Cow::Borrowed(text);
    }
    let kept = text.chars().map(|c| if c.is_alphanumeric() || matches!(c, '-' | '.') { c } else { '_' });
    let mut name: String = kept.collect();
    if !name.starts_with(|c: char| c.is_alphabetic() || c == '_') {
        name.insert(0, '_');
    }
    Cow::Owned(name)
}

/// Writes text between tags or inside an attribute. Characters that XML has no way to write are left out.
pub fn write_text(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            // A reader would turn it into a line feed.
            '\r' => out.push_str("&#13;"),
            '\t' | '\n' => out.push(c),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => {}
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Document<'_>> {
        Document::read(Cow::Borrowed(text))
    }

    #[test]
    fn paths_find_elements_and_attributes() {
        let text = r#"<?xml version="1.0"?><!-- hello --><s:response xmlns:s="urn:x" code="7">
            <empty/><other><status>no</status></other>
            <status kind='a&amp;b'> Mat<b>not</b>ched &lt;&#49;&#x32;&nbsp;<![CDATA[<&>]]></status>
            <error><code>1</code></error><error><note>n</note><code>2</code></error></s:response>"#;
        let document = read(text).unwrap();
        for (path, expected) in [
            ("/response/status", Some(" Matched <12&nbsp;<&>")),
            ("/s:response/status", Some(" Matched <12&nbsp;<&>")),
            ("/response/@code", Some("7")),
            ("/response/status/@kind", Some("a&b")),
            ("/response/status/b", Some("not")),
            ("/response/other/status", Some("no")),
            ("/response/error/code", Some("1")),
            ("/response/error/note", Some("n")),
            ("/response/error/1/code", Some("2")),
            ("/response/error/0/code", Some("1")),
            ("/response/error/2/code", None),
            ("/response/empty", Some("")),
            ("/response/@none", None),
            ("/response/nowhere", None),
            ("/status", None),
            ("/response/status/b/c", None),
            ("/Response/status", None),
        ] {
            assert_eq!(document.text(path).as_deref(), expected, "{path}");
        }
        assert_eq!(read("<string>{\"a\":1}</string>").unwrap().text("").as_deref(), Some("{\"a\":1}"));
        assert_eq!(read("<a/>").unwrap().text("/a").as_deref(), Some(""));
    }

    #[test]
    fn f49_what_is_no_plain_document_is_not_read() {
        let laughs = "<!DOCTYPE l [<!ENTITY a \"ha\"><!ENTITY b \"&a;&a;&a;\">]><l>&b;</l>";
        for bad in [
            "",
            "accepted",
            "{}",
            "<a>",
            "<a></b>",
            "<a/><b/>",
            "<a/>text",
            "text<a/>",
            "</a>",
            "<a b=1/>",
            "<a b=\"1\" b=\"2\"/>",
            "<a>&#0;</a>",
            "<a>&#xffffffff;</a>",
            "<!DOCTYPE html><html></html>",
            laughs,
        ] {
            assert!(read(bad).is_none(), "{bad}");
        }
        let nested = |depth: usize| format!("{}{}", "<a>".repeat(depth), "</a>".repeat(depth));
        assert!(read(&nested(DEPTH_MAX)).is_some());
        assert!(read(&nested(DEPTH_MAX + 1)).is_none());
        assert!(read(&nested(20_000)).is_none());
        let attributes = |count: usize| {
            let list: Vec<String> = (0..count).map(|number| format!("a{number}=\"\"")).collect();
            format!("<a {}/>", list.join(" "))
        };
        assert!(read(&attributes(ATTRIBUTES_MAX)).is_some());
        assert!(read(&attributes(ATTRIBUTES_MAX + 1)).is_none());
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut out = String::new();
        write_text("<Zoë> & \"O'Neil\"\r\n\t\u{1}\0\u{fffe}]]>", &mut out);
        assert_eq!(out, "&lt;Zoë&gt; &amp; &quot;O&apos;Neil&quot;&#13;\n\t]]&gt;");
        let document = format!("<a b=\"{out}\">{out}</a>");
        assert_eq!(read(&document).unwrap().text("/a").as_deref(), Some("<Zoë> & \"O'Neil\"\r\n\t]]>"));
        for (text, name) in
            [("first_name", "first_name"), ("data.json", "data.json"), ("1st", "_1st"), ("a b<c>", "a_b_c_"), ("", "_")]
        {
            assert_eq!(as_name(text), name);
            assert!(is_name(name));
        }
        assert!(is_name("soap:Body") && !is_name("-a") && !is_name("a b") && !is_name("a/b"));
    }
}
