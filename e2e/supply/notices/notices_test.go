package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// texts of licences, as far as they are recognised, with the line breaks and marks that files have.
const (
	mit = "MIT License\n\nPermission is hereby granted, free of charge, to any person\n obtaining a copy of this " +
		"software and\nassociated documentation files (the \"Software\"), to deal"
	bsd2 = "// Redistribution and use in source and binary forms, with or without\n// modification, are permitted " +
		"provided that"
	bsd3 = bsd2 + "\n// Neither the name of X may be used to endorse or\n// promote products derived from this software"
	apch = "    Apache License\n   Version 2.0, January 2004"
	mpl  = "Mozilla Public License Version 2.0\n==========\n... the GNU General Public License, Version 2.0 ..."
	gpl  = "GNU GENERAL PUBLIC LICENSE\n Version 3, 29 June 2007"
	busl = "Business Source License 1.1"
)

func TestLicencesAreRecognised(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		mit: {"MIT"}, bsd2: {"BSD-2-Clause"}, bsd3: {"BSD-3-Clause"}, apch: {"Apache-2.0"}, mpl: {"MPL-2.0"}, gpl: {"GPL"},
		busl: {"BUSL"}, mit + "\n" + apch: {"Apache-2.0", "MIT"}, "All rights reserved.": nil, "": nil,
	} {
		if got := licencesOf(text); !slices.Equal(got, want) {
			t.Errorf("%.40q is %v, want %v", text, got, want)
		}
	}
}

// cached is a module in a folder with these files.
func cached(t *testing.T, path string, files map[string]string) module {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return module{name: path + " v1.0.0", path: path, dir: dir}
}

func TestNoticesHaveEachTextOnce(t *testing.T) {
	t.Parallel()
	got, err := notices([]module{
		cached(t, "a", map[string]string{
			"LICENSE": mit, "NOTICE": "a is by A", "license.go": "package a", "testdata/LICENSE": gpl}),
		cached(t, "b", map[string]string{"LICENSE.md": mit + "\n", "part/COPYING": bsd3}),
		cached(t, "github.com/hashicorp/yamux", map[string]string{"LICENSE": mpl}),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a v1.0.0, LICENSE (MIT)\nb v1.0.0, LICENSE.md (MIT)\n", "a is by A", "b v1.0.0, part/COPYING (BSD-3-Clause)",
		"yamux v1.0.0, LICENSE (MPL-2.0)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the notices lack %q:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "obtaining a copy"); n != 1 {
		t.Errorf("the text of two modules is written %d times", n)
	}
}

func TestModulesWithoutAnAllowedLicenceFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		says  string
	}{
		"none":              {map[string]string{"README": mit}, "has no licence"},
		"only below":        {map[string]string{"sub/LICENSE": mit}, "has no licence"},
		"unknown":           {map[string]string{"LICENSE": "All rights reserved."}, "LICENSE: the licence is not recognised"},
		"copyleft":          {map[string]string{"LICENSE": gpl}, "GPL is not allowed"},
		"weak, not listed":  {map[string]string{"LICENSE": mpl}, "MPL-2.0 is not allowed"},
		"one of two":        {map[string]string{"LICENSE": mit + "\n" + busl}, "BUSL is not allowed"},
		"of a part":         {map[string]string{"LICENSE": mit, "sub/LICENSE": gpl}, "sub/LICENSE: the licence GPL"},
		"second file":       {map[string]string{"LICENSE": mit, "COPYING": "Ask me."}, "COPYING: the licence is not"},
		"of commerce":       {map[string]string{"LICENSE": apch + "\nCommons Clause"}, "Commons-Clause"},
		"of the server":     {map[string]string{"LICENSE": "Server Side Public License"}, "SSPL"},
		"name with a title": {map[string]string{"LICENCE-2.txt": "no"}, "LICENCE-2.txt"},
	} {
		if _, err := notices([]module{cached(t, "m", c.files)}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %q", name, err, c.says)
		}
	}
}

func TestTheModuleCacheMarksCapitalLetters(t *testing.T) {
	t.Parallel()
	if got := escaped("github.com/BurntSushi/toml@v1.0.0-RC"); got != "github.com/!burnt!sushi/toml@v1.0.0-!r!c" {
		t.Error(got)
	}
}

// This test program has the modules of this package's dependencies.
func TestNoticesNameTheModulesOfAProgram(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(&out, []string{self}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "Go standard library, LICENSE (BSD-3-Clause)") {
		t.Errorf("the notices lack the standard library:\n%.500s", out.String())
	}
	if err := run(&out, nil); err == nil {
		t.Error("a run without programs succeeds")
	}
	if err := run(&out, []string{"notices_test.go"}); err == nil {
		t.Error("a file that is no program is accepted")
	}
}
