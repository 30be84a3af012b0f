//! Builds a tree from the events of the YAML parser, with bounds on its size.

use std::collections::HashMap;
use std::rc::Rc;

use hashbrown::DefaultHashBuilder;
use indexmap::IndexMap;
use saphyr_parser::{Event, ScalarStyle};

use super::{Content, Entry, MAX_DEPTH, MAX_NODES, MAX_TEXT, TOO_DEEP, YamlNode, item, join};
use crate::config::findings::Findings;
use crate::config::problem::{Mark, Place, Problem};

/// A list or mapping that is not complete yet.
struct Frame {
    mark: Mark,
    anchor: usize,
    size: Size,
    kind: FrameKind,
}

enum FrameKind {
    Sequence(Vec<Rc<YamlNode>>),
    Mapping {
        /// The entries so far, each with the position of its name.
        entries: IndexMap<String, (Mark, Rc<YamlNode>), DefaultHashBuilder>,
        /// The key whose value comes next.
        key: Option<Key>,
        /// The mappings that `<<` merges in.
        merged: Vec<Rc<YamlNode>>,
    },
}

struct Key {
    text: String,
    mark: Mark,
    /// How the builder uses the key's value: as an entry, as a mapping to merge, or not at all (a repeated key).
    role: Role,
}

#[derive(Clone, Copy, PartialEq)]
enum Role {
    Entry,
    Merge,
    Repeated,
}

/// A finished node that an alias may refer to.
struct Anchored {
    node: Rc<YamlNode>,
    size: Size,
}

/// The size of a node with all aliases written out.
#[derive(Clone, Copy, Default)]
struct Size {
    /// The number of values, the node itself included.
    nodes: usize,
    /// The number of bytes of names and values.
    text: usize,
}

impl Size {
    const fn one(text: usize) -> Self {
        Self { nodes: 1, text }
    }

    fn add(&mut self, other: Self) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.text = self.text.saturating_add(other.text);
    }
}

/// The tree so far.
pub(super) struct Builder<'f> {
    findings: &'f Findings,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Anchored>,
    size: Size,
    documents: usize,
    pub(super) root: Option<Rc<YamlNode>>,
}

impl<'f> Builder<'f> {
    /// A builder without any nodes.
    pub(super) fn new(findings: &'f Findings) -> Self {
        Self { findings, stack: Vec::new(), anchors: HashMap::new(), size: Size::default(), documents: 0, root: None }
    }

    fn problem(&self, mark: Mark, message: impl Into<String>) -> Problem {
        Problem::error(self.findings.place(mark, &self.path()), message)
    }

    /// Adds `problem`, after which parsing stops.
    fn refuse(&self, problem: Problem) -> Option<()> {
        self.findings.add(problem);
        None
    }

    /// The path of the next value.
    fn path(&self) -> String {
        self.stack.iter().fold(String::new(), |path, frame| match &frame.kind {
            FrameKind::Sequence(items) => item(&path, items.len()),
            FrameKind::Mapping { key: Some(key), .. } => join(&path, &key.text),
            FrameKind::Mapping { key: None, .. } => path,
        })
    }

    /// The parser's place: the last list or mapping that was begun, or `start` if there is none.
    pub(super) fn place_of_next(&self, start: Mark) -> Place {
        self.findings.place(self.stack.last().map_or(start, |frame| frame.mark), &self.path())
    }

    /// Takes the next event, which stands at `mark`; `None` (and a finding) if parsing has to stop.
    pub(super) fn take(&mut self, event: Event<'_>, mark: Mark) -> Option<()> {
        match event {
            Event::DocumentStart(_) => {
                self.documents = self.documents.saturating_add(1);
                if self.documents > 1 {
                    return self.refuse(
                        self.problem(mark, "a second document begins here").expected("one document in the file"),
                    );
                }
                Some(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tag(tag.is_some(), mark)?;
                let plain = style == ScalarStyle::Plain;
                if self.expects_key() {
                    return self.key(text.into_owned(), plain, mark);
                }
                let size = Size::one(text.len());
                self.count(size, mark)?;
                let node = YamlNode { mark, content: Content::Scalar { text: text.into_owned(), plain } };
                self.finished(Rc::new(node), size, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), mark)?;
                self.open(mark, anchor, FrameKind::Sequence(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), mark)?;
                let kind = FrameKind::Mapping { entries: IndexMap::default(), key: None, merged: Vec::new() };
                self.open(mark, anchor, kind)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => {
                if self.expects_key() {
                    return self.refuse(self.problem(mark, "an alias stands for a name").expected("the name itself"));
                }
                let Some(anchored) = self.anchors.get(&anchor) else {
                    return self.refuse(self.problem(mark, "this alias stands inside of what it refers to"));
                };
                let (node, size) = (Rc::clone(&anchored.node), anchored.size);
                self.count(size, mark)?;
                self.finished(node, size, 0)
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Some(()),
        }
    }

    fn expects_key(&self) -> bool {
        matches!(self.stack.last(), Some(Frame { kind: FrameKind::Mapping { key: None, .. }, .. }))
    }

    fn refuse_tag(&self, tagged: bool, mark: Mark) -> Option<()> {
        if tagged {
            return self.refuse(self.problem(mark, "a YAML tag (`!...`) is used").expected("values without tags"));
        }
        Some(())
    }

    fn count(&mut self, size: Size, mark: Mark) -> Option<()> {
        self.size.add(size);
        if self.size.nodes <= MAX_NODES && self.size.text <= MAX_TEXT {
            return Some(());
        }
        let message = match self.size.nodes > MAX_NODES {
            true => format!("the file holds more than {MAX_NODES} values"),
            false => format!("the values of the file are longer than {} KiB together", MAX_TEXT >> 10),
        };
        self.refuse(
            Problem::error(self.findings.place(mark, ""), message).hint("what aliases repeat is counted each time"),
        )
    }

    fn open(&mut self, mark: Mark, anchor: usize, kind: FrameKind) -> Option<()> {
        if self.expects_key() {
            return self.refuse(self.problem(mark, "a list or mapping stands for a name").expected("a word"));
        }
        if self.stack.len() >= MAX_DEPTH {
            return self.refuse(Problem::error(self.findings.place(mark, ""), TOO_DEEP));
        }
        self.count(Size::one(0), mark)?;
        self.stack.push(Frame { mark, anchor, size: Size::one(0), kind });
        Some(())
    }

    fn key(&mut self, text: String, plain: bool, mark: Mark) -> Option<()> {
        if text.is_empty() {
            return self.refuse(self.problem(mark, "a name is missing before `:`"));
        }
        let size = Size { nodes: 0, text: text.len() };
        self.count(size, mark)?;
        let Some(Frame { kind: FrameKind::Mapping { entries, .. }, .. }) = self.stack.last() else {
            return Some(());
        };
        let role = match entries.get(&text) {
            _ if plain && text == "<<" => Role::Merge,
            Some(_) if self.findings.count_if_full() => Role::Repeated,
            Some((first, _)) => {
                self.findings.add(
                    Problem::error(self.findings.place(mark, &join(&self.path(), &text)), "is given twice")
                        .found(format!("the first on line {}, column {}", first.line, first.column))
                        .expected("each name once"),
                );
                Role::Repeated
            }
            None => Role::Entry,
        };
        if let Some(Frame { kind: FrameKind::Mapping { key, .. }, size: frame_size, .. }) = self.stack.last_mut() {
            frame_size.add(size);
            *key = Some(Key { text, mark, role });
        }
        Some(())
    }

    /// Adds a finished node to its list or mapping, or makes it the root.
    fn finished(&mut self, node: Rc<YamlNode>, size: Size, anchor: usize) -> Option<()> {
        if anchor > 0 {
            self.anchors.insert(anchor, Anchored { node: Rc::clone(&node), size });
        }
        let Some(frame) = self.stack.last_mut() else {
            self.root = Some(node);
            return Some(());
        };
        frame.size.add(size);
        match &mut frame.kind {
            FrameKind::Sequence(items) => items.push(node),
            FrameKind::Mapping { entries, key, merged, .. } => match key.take() {
                Some(Key { text, mark, role: Role::Entry }) => {
                    entries.insert(text, (mark, node));
                }
                Some(Key { mark, role: Role::Merge, .. }) => match mappings_in(&node) {
                    Some(mappings) => merged.extend(mappings),
                    None => {
                        return self.refuse(self.problem(mark, "`<<` takes in something that is no mapping"));
                    }
                },
                Some(Key { role: Role::Repeated, .. }) | None => {}
            },
        }
        Some(())
    }

    fn close(&mut self) -> Option<()> {
        let Some(Frame { mark, anchor, size, kind }) = self.stack.pop() else {
            return Some(());
        };
        let content = match kind {
            FrameKind::Sequence(items) => Content::Sequence(items),
            FrameKind::Mapping { mut entries, merged, .. } => {
                // the mapping's own entries take precedence, then the first mapping merged in
                for mapping in &merged {
                    if let Content::Mapping(more) = &mapping.content {
                        for Entry { key, key_mark, value } in more {
                            entries.entry(key.clone()).or_insert_with(|| (*key_mark, Rc::clone(value)));
                        }
                    }
                }
                let entry = |(key, (key_mark, value))| Entry { key, key_mark, value };
                Content::Mapping(entries.into_iter().map(entry).collect())
            }
        };
        self.finished(Rc::new(YamlNode { mark, content }), size, anchor)
    }
}

/// The mappings that `<<: node` merges in.
fn mappings_in(node: &Rc<YamlNode>) -> Option<Vec<Rc<YamlNode>>> {
    match &node.content {
        Content::Mapping(_) => Some(vec![Rc::clone(node)]),
        Content::Sequence(items) => {
            items.iter().all(|item| matches!(item.content, Content::Mapping(_))).then(|| items.clone())
        }
        Content::Scalar { .. } => None,
    }
}
