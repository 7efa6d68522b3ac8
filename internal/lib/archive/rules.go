package archive

import (
	"archive/tar"
	"fmt"
	"path"
	"strings"

	"berth"
)

// Limits bound the unpacked content of an archive.
type Limits struct {
	Bytes int64 // of all files together
	Files int   // entries, folders and links included
}

// Default bounds code. Data sets are inputs of another kind.
var Default = Limits{Bytes: 8 << 30, Files: 100_000}

// Bounds of one name: Linux's own, or stricter.
const (
	maxName  = 1024 // bytes of a path
	maxPart  = 255  // and of each part of it
	maxDepth = 64
	maxHops  = 40        // links followed for one target
	maxSteps = 2_000_000 // looking where links lead, all together
)

// own is the folder that Berth reserves among the user's files.
const own = ".berth"

// Kind is the kind of an entry.
type Kind int

// The kinds of entries. There are no others.
const (
	Folder Kind = iota
	File
	Link
)

// Entry is one thing in an archive.
type Entry struct {
	Name   string // slash-separated, relative, clean
	Kind   Kind
	Size   int64
	Exec   bool
	Target string // of a link
}

// refused returns the error of content that breaks the rules.
func refused(format string, args ...any) error {
	return &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugArchive,
		Message: "archive: " + fmt.Sprintf(format, args...)}
}

// IsRefused reports whether err is about an archive's content, which a retry cannot change.
func IsRefused(err error) bool { return berth.IsSlug(err, berth.SlugArchive) }

// rules judge the entries of one archive, one after the other in the order of the archive. They
// must see every entry: end judges the links against all names.
type rules struct {
	limits Limits
	files  int
	bytes  int64

	kinds    map[string]Kind   // of each name
	implicit map[string]bool   // folders that were only named as parents
	links    map[string]string // targets by name
	folded   map[string]string // names by their lower case, the first of each
	linkFold map[string]string // the same of links alone
}

// newRules returns rules that have seen no entry.
func newRules(l Limits) *rules {
	return &rules{
		limits: l, kinds: map[string]Kind{}, implicit: map[string]bool{}, links: map[string]string{},
		folded: map[string]string{}, linkFold: map[string]string{},
	}
}

// header validates an entry of a tar. ok is false for headers that are not entries, such as the
// folder itself. Every header counts against the limit on entries, so that an archive of headers
// alone ends too.
func (r *rules) header(h *tar.Header) (e Entry, ok bool, err error) {
	if r.files++; r.files > r.limits.Files {
		return e, false, refused("has more than %d entries", r.limits.Files)
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return e, false, nil // of git archive: a comment
	}
	e = Entry{Name: strings.TrimPrefix(h.Name, "./"), Size: h.Size, Target: h.Linkname, Exec: h.Mode&0o100 != 0}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Kind = File
	case tar.TypeDir:
		e.Kind, e.Size = Folder, 0
		e.Name = strings.TrimSuffix(e.Name, "/")
		if e.Name == "" || e.Name == "." {
			return e, false, nil
		}
	case tar.TypeSymlink:
		e.Kind, e.Size = Link, 0
	case tar.TypeLink:
		return e, false, refused("%q is a hard link: only folders, files and symbolic links are allowed", h.Name)
	case tar.TypeChar, tar.TypeBlock:
		return e, false, refused("%q is a device: only folders, files and symbolic links are allowed", h.Name)
	case tar.TypeFifo:
		return e, false, refused("%q is a pipe: only folders, files and symbolic links are allowed", h.Name)
	default:
		return e, false, refused("%q is of kind %q: only folders, files and symbolic links are allowed",
			h.Name, h.Typeflag)
	}
	if h.Mode&0o7000 != 0 {
		return e, false, refused("%q has a setuid, setgid or sticky bit: it must have none", h.Name)
	}
	return e, true, r.entry(e)
}

// entry validates a file, a folder or a link against all entries so far. Links must have
// relative targets; end follows the targets.
func (r *rules) entry(e Entry) error {
	if err := checkName(e.Name); err != nil {
		return err
	}
	if err := r.parents(e.Name); err != nil {
		return err
	}
	// An archive may name a folder after entries in that folder, which have implied it. Any other
	// repeated name would replace an entry that has been judged and perhaps written.
	if kind, taken := r.kinds[e.Name]; taken && !(kind == Folder && e.Kind == Folder && r.implicit[e.Name]) {
		return refused("%q is there twice", e.Name)
	}
	// From now on the name is declared, and must not come a third time.
	delete(r.implicit, e.Name)
	if e.Size < 0 {
		return refused("%q has a size below zero", e.Name)
	}
	// Both comparisons are needed: the sum of two huge sizes may overflow to a small one.
	if r.bytes += e.Size; e.Size > r.limits.Bytes || r.bytes > r.limits.Bytes {
		return refused("unpacks to more than %s", berth.BytesText(r.limits.Bytes))
	}
	if e.Kind == Link {
		if e.Target == "" || len(e.Target) > maxName || path.IsAbs(e.Target) {
			return refused("the link %q leads to %.200q: allowed are relative targets of at most %d bytes", e.Name,
				e.Target, maxName)
		}
		r.links[e.Name] = e.Target
	}
	return r.add(e.Name, e.Kind)
}

// checkName validates one name by itself: relative, clean, of bounded length and depth, and
// outside of Berth's own folder in any case of letters.
func checkName(name string) error {
	switch {
	case path.IsAbs(name):
		return refused("%.200q is an absolute path: names are relative to the folder", name)
	case name == "" || len(name) > maxName:
		return refused("%.200q has %d bytes: names have 1 to %d", name, len(name), maxName)
	case strings.ContainsRune(name, 0):
		return refused("%.200q has a NUL in its name", name)
	case strings.Count(name, "/") >= maxDepth:
		return refused("%.200q lies %d folders deep: at most %d", name, strings.Count(name, "/"), maxDepth)
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return refused("%.200q leads out of the folder", name)
		case part == "" || part == ".":
			return refused("%.200q is not written in its simplest form", name)
		case len(part) > maxPart:
			return refused("%.200q has a part of %d bytes: at most %d", name, len(part), maxPart)
		}
	}
	if first, _, _ := strings.Cut(name, "/"); strings.EqualFold(first, own) {
		return refused("%.200q: %s is Berth's own folder", name, own)
	}
	return nil
}

// parents records the folders above a name as implied. None of them may be a file or a link:
// writing through a link could leave the folder.
func (r *rules) parents(name string) error {
	for i, c := range name {
		if c != '/' {
			continue
		}
		parent := name[:i]
		kind, known := r.kinds[parent]
		switch {
		case known && kind == Link:
			return refused("%q lies below the link %q", name, parent)
		case known && kind == File:
			return refused("%q lies below the file %q", name, parent)
		case known:
			continue
		}
		r.implicit[parent] = true
		if err := r.add(parent, Folder); err != nil {
			return err
		}
	}
	return nil
}

// add records a name. On a file system without distinction of upper and lower case,
// a link could replace a folder of almost the same name.
func (r *rules) add(name string, kind Kind) error {
	fold := strings.ToLower(name)
	if other, ok := r.linkFold[fold]; ok && other != name {
		return refused("%q and the link %q differ only in case", name, other)
	}
	if other, ok := r.folded[fold]; ok && other != name && kind == Link {
		return refused("the link %q and %q differ only in case", name, other)
	}
	if kind == Link {
		r.linkFold[fold] = name
	}
	if _, ok := r.folded[fold]; !ok {
		r.folded[fold] = name
	}
	r.kinds[name] = kind
	return nil
}

// Judge judges entries that do not come from an archive, by the same rules.
func Judge(entries []Entry, l Limits) error {
	r := newRules(l)
	for _, e := range entries {
		if r.files++; r.files > l.Files {
			return refused("has more than %d entries", l.Files)
		}
		if err := r.entry(e); err != nil {
			return err
		}
	}
	return r.end()
}

// end validates the targets of links, which lead through each other, once all
// entries are known. Their texts alone are not enough: after one link to the top, two
// dots lead out.
func (r *rules) end() error {
	steps := 0
	for name := range r.links {
		if err := r.follow(name, &steps); err != nil {
			return err
		}
	}
	return nil
}

// follow resolves one link's target part by part, through other links, as the kernel would, and
// fails if the way leaves the folder at any point. steps counts the parts of all links together,
// which bounds the time that links through each other can take.
func (r *rules) follow(name string, steps *int) error {
	at := strings.Split(name, "/")
	at = at[:len(at)-1]
	ahead := strings.Split(r.links[name], "/")
	for hops := 1; len(ahead) > 0; {
		part := ahead[0]
		ahead = ahead[1:]
		if *steps++; *steps > maxSteps {
			return refused("has too many links that lead through each other")
		}
		switch part {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return refused("the link %q leads out of the folder, to %.200q", name, r.links[name])
			}
			at = at[:len(at)-1]
			continue
		}
		target, link := r.links[strings.Join(append(at[:len(at):len(at)], part), "/")]
		if !link {
			at = append(at[:len(at):len(at)], part)
			continue
		}
		if hops++; hops > maxHops {
			return refused("the link %q leads in a circle, or through more than %d others", name, maxHops)
		}
		// The parts of the target are resolved before the rest of the path. maxHops ends circles.
		ahead = append(strings.Split(target, "/"), ahead...)
	}
	return nil
}
