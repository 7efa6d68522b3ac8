package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// permissive are the identifiers of SPDX that every module may have.
var permissive = []string{"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC"}

// exceptions are licences of single modules, by path.
var exceptions = map[string][]string{
	// Weak copyleft: changes of its files must be published. Berth links it unchanged.
	"github.com/hashicorp/yamux":     {"MPL-2.0"},
	"github.com/go-sql-driver/mysql": {"MPL-2.0"}, // in the Temporal server alone, which never connects to MySQL here
}

// bare are modules without a licence of their own, by path and version, each with the reason to accept it. A new
// version is examined again.
var bare = map[string]string{
	"github.com/nexus-rpc/nexus-proto-annotations v0.1.0": "the module has no licence file. go.temporal.io/api, " +
		"which has the licence MIT, needs it; it has generated options of protobuf alone",
	"github.com/cactus/go-statsd-client/statsd v0.0.0-20200423205355-cb0885a1018c": "the module is a folder of a " +
		"repository; the licence MIT is in the folder above, and in github.com/cactus/go-statsd-client/v5",
}

// elsewhere are files with licences of parts that no program contains, by path of the module and name.
var elsewhere = map[[2]string]bool{
	{"github.com/opencontainers/go-digest", "LICENSE.docs"}: true, // of its documents
	{"modernc.org/memory", "LICENSE-LOGO"}:                  true, // of a picture
}

// known recognises licences by sentences that only their texts contain, in lower case with single spaces.
// Marks of comments, and so each slash, count as spaces.
var known = []struct{ id, sentence string }{
	{"Apache-2.0", "apache license version 2.0, january 2004"},
	{"Apache-2.0", "the asf licenses this file to you under the apache license, version 2.0"},
	{"MIT", "permission is hereby granted, free of charge, to any person obtaining a copy of this software and " +
		"associated documentation files"},
	{"ISC", "permission to use, copy, modify, and distribute this software for any purpose with or without fee is " +
		"hereby granted"},
	{"ISC", "permission to use, copy, modify, and or distribute this software for any purpose with or without fee is " +
		"hereby granted"},
	{"MPL-2.0", "mozilla public license version 2.0 =="},
	{"MPL-2.0", "mozilla public license, version 2.0 1. definitions"},
	{"AGPL", "gnu affero general public license version"},
	{"GPL", "gnu general public license version"},
	{"LGPL", "gnu lesser general public license version"},
	{"SSPL", "server side public license"},
	{"BUSL", "business source license"},
	{"Commons-Clause", "commons clause"},
}

// The licences of the BSD family differ by one condition.
const (
	bsd         = "redistribution and use in source and binary forms, with or without modification, are permitted"
	noEndorsing = "endorse or promote products derived from"
)

var spaces = regexp.MustCompile(`[\s*/#>]+`)

// licencesOf returns the identifiers of the licences in a text, sorted. A text may have several.
func licencesOf(text string) []string {
	flat := strings.ToLower(spaces.ReplaceAllString(text, " "))
	var ids []string
	for _, k := range known {
		if strings.Contains(flat, k.sentence) {
			ids = append(ids, k.id)
		}
	}
	switch {
	case !strings.Contains(flat, bsd):
	case strings.Contains(flat, noEndorsing):
		ids = append(ids, "BSD-3-Clause")
	default:
		ids = append(ids, "BSD-2-Clause")
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// judge returns the licences in a text of a module, and an error unless all of them are allowed.
func judge(path, text string) ([]string, error) {
	ids := licencesOf(text)
	if len(ids) == 0 {
		return nil, errors.New("the licence is not recognised")
	}
	for _, id := range ids {
		if !slices.Contains(permissive, id) && !slices.Contains(exceptions[path], id) {
			return ids, fmt.Errorf("the licence %s is not allowed; allowed are %s", id, strings.Join(permissive, ", "))
		}
	}
	return ids, nil
}

// file matches names of files with licences, and of other legal texts that must travel along.
var (
	licenceName = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([-._].*)?$`)
	noticeName  = regexp.MustCompile(`(?i)^(notice|patents)([-._].*)?$`)
	sourceName  = regexp.MustCompile(`(?i)\.(go|s|c|h|py|sh|json|ya?ml|tmpl|html)$`)
)

// isLicence reports whether a file in a module is a licence.
func isLicence(name string) bool {
	base := filepath.Base(name)
	return licenceName.MatchString(base) && !sourceName.MatchString(base)
}

// licenceFiles returns the names of a module's files with licences and notices, sorted, subfolders
// included: parts of a module may have licences of their own. Folders that no build reads are left out.
func licenceFiles(m module) ([]string, error) {
	var names []string
	err := filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(m.dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			base := d.Name()
			if name != "." && (m.rootOnly || base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") ||
				strings.HasPrefix(base, "_")) {
				return fs.SkipDir
			}
			return nil
		}
		if elsewhere[[2]string{m.path, name}] {
			return nil
		}
		notice := noticeName.MatchString(d.Name()) && !sourceName.MatchString(d.Name())
		if d.Type().IsRegular() && (isLicence(name) || notice) {
			names = append(names, name)
		}
		return nil
	})
	return names, err
}
