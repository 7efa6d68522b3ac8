// Command notices writes the licences of the modules that programs contain: the file NOTICE of a release.
// The modules come from the build information in the programs, and the texts from the module cache.
// scripts/release.sh calls it.
//
// The one rule to know: a module without a licence, with a text that is not recognised, or with a licence
// that is not allowed fails the run; licences of weak copyleft are allowed module by module.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

func main() {
	flag.Parse()
	if err := run(os.Stdout, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

// run writes the notices of programs to out. Nothing is written if a module has a fault.
func run(out io.Writer, programs []string) error {
	if len(programs) == 0 {
		return errors.New("name the programs")
	}
	folders, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE").Output()
	if err != nil {
		return fmt.Errorf("go env: %w", err)
	}
	root, cache, _ := strings.Cut(strings.TrimSpace(string(folders)), "\n")
	modules, err := linked(programs, cache)
	if err != nil {
		return err
	}
	modules = append(modules, module{name: "Go standard library", dir: root, rootOnly: true})
	text, err := notices(modules)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return err
}

// module is a module of a program.
type module struct {
	name     string // path and version
	path     string // "" for the standard library
	dir      string // of its files
	rootOnly bool   // subfolders hold no licences of linked code
}

// linked returns the modules in programs, each once, by name, with their folders in the module cache. A build
// has put them there, so nothing is downloaded.
func linked(programs []string, cache string) ([]module, error) {
	found := map[string]module{} // by path@version
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		for _, d := range info.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			if d.Version == "" {
				return nil, fmt.Errorf("%s: module %s comes from a folder and has no version", p, d.Path)
			}
			key := d.Path + "@" + d.Version
			found[key] = module{name: d.Path + " " + d.Version, path: d.Path, dir: filepath.Join(cache, escaped(key))}
		}
	}
	var list []module
	for _, key := range slices.Sorted(maps.Keys(found)) {
		m := found[key]
		if _, err := os.Stat(m.dir); err != nil {
			return nil, fmt.Errorf("module %s is not in the module cache: %w (go mod download)", m.name, err)
		}
		list = append(list, m)
	}
	return list, nil
}

// escaped returns a path as the module cache writes it: "!" and the small letter for each capital letter, for file
// systems that know no difference.
func escaped(path string) string {
	var b strings.Builder
	for _, r := range path {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// text is a file with a licence or a notice, and the modules that have the same one.
type text struct {
	content string
	of      []string // module, kind of licence and the file's name in the module
}

// notices returns the notices of modules. Equal texts are written once. The error has all faults.
func notices(modules []module) (string, error) {
	var faults []error
	texts := map[[sha256.Size]byte]*text{}
	var order []*text
	for _, m := range modules {
		files, err := licenceFiles(m)
		if err != nil {
			return "", err
		}
		kinds := map[string]bool{}
		for _, name := range files {
			b, err := os.ReadFile(filepath.Join(m.dir, name))
			if err != nil {
				return "", err
			}
			label := m.name + ", " + name
			if isLicence(name) {
				ids, err := judge(m.path, string(b))
				if err != nil {
					faults = append(faults, fmt.Errorf("%s: %s: %w", m.name, name, err))
				}
				if filepath.Dir(name) == "." {
					kinds[strings.Join(ids, " and ")] = true
				}
				label = fmt.Sprintf("%s, %s (%s)", m.name, name, strings.Join(ids, " and "))
			}
			content := strings.TrimSpace(strings.ReplaceAll(string(b), "\r\n", "\n"))
			sum := sha256.Sum256([]byte(content))
			if texts[sum] == nil {
				texts[sum] = &text{content: content}
				order = append(order, texts[sum])
			}
			texts[sum].of = append(texts[sum].of, label)
		}
		if reason, accepted := bare[m.name]; accepted && len(kinds) == 0 {
			order = append(order, &text{content: reason, of: []string{m.name + ", without a licence"}})
		} else if len(kinds) == 0 {
			faults = append(faults, fmt.Errorf("%s: its folder %s has no licence", m.name, m.dir))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Berth is licensed under the Apache License 2.0 (LICENSE). Its programs contain the Go standard\n"+
		"library and %d modules. Their licences and notices follow; equal texts are written once, below the names\n"+
		"of the files that contain them.\n", len(modules)-1)
	for _, t := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(t.of, "\n"),
			strings.Repeat("-", 80), t.content)
	}
	return b.String(), nil
}
