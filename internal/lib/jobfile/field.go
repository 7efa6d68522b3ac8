package jobfile

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// elsewhere maps words of other schedulers to the field of a job file with that meaning.
var elsewhere = map[string]string{
	"any_of": "alternatives", "ordered": "alternatives", "fallback": "alternatives", "fallbacks": "alternatives",
	"args": "command", "cmd": "command", "commands": "command", "run": "command", "script": "command",
	"container": "image", "docker_image": "image",
	"environment": "env", "envs": "env", "variables": "env",
	"mem": "resources.memory", "ram": "resources.memory", "cores": "resources.cpus", "vcpus": "resources.cpus",
	"accelerators": "resources.gpus", "gpu": "resources.gpus", "cpu": "resources.cpus", "shm": "resources.shm_size",
	"nodes": "members", "num_nodes": "members", "replicas": "members", "instances": "members",
	"timeout": "time_limit", "max_duration": "time_limit", "deadline": "time_limit",
	"retries": "retry.max_attempts", "max_retries": "retry.max_attempts", "restart": "retry",
	"node_selector": "placement.labels", "constraints": "placement.constraint", "region": "placement.regions",
	"grace": "stop_grace", "tags": "labels", "volumes": "inputs", "file_mounts": "inputs", "webhooks": "notify",
}

// unknown refuses a key that the type lacks, and suggests the nearest fields.
func (d *decoder) unknown(e entry, t reflect.Type, path string) {
	at := join(path, e.key)
	if path == "" && e.key == "kind" {
		detail, allowed := fmt.Sprintf("%q is not known",
			e.value.text), "pipeline and schedule; leave kind out for a job"
		if kubernetes(e.value.text) {
			detail, allowed = detail+" (this looks like a Kubernetes manifest)", ""
		}
		d.fault(e.at, at, detail, allowed)
		return
	}
	names := nearest(e.key, t, path)
	switch {
	case len(names) > 0:
		d.fault(e.at, at, "is not a field", "did you mean "+orList(names)+"?")
	default:
		d.fault(e.at, at, "is not a field", "allowed are "+andList(fieldNames(t)))
	}
}

// kubernetes reports whether a kind is written like a kind of Kubernetes, such as Job.
func kubernetes(kind string) bool { return kind != "" && kind[0] >= 'A' && kind[0] <= 'Z' }

// nearest lists the fields that a misspelt key may have meant, the best first: names
// within a small edit distance, then fields of that name elsewhere in the spec, then the
// words of other schedulers. A quarter of the key's letters, plus one, may be wrong; keys
// of two letters must match, since any two are alike.
func nearest(key string, t reflect.Type, path string) []string {
	key = strings.ToLower(strings.ReplaceAll(key, "-", "_"))
	best, names := 1+len(key)/4, []string(nil)
	if len(key) <= 2 {
		best = 0
	}
	for _, name := range fieldNames(t) {
		switch n := distance(key, name); {
		case n < best:
			best, names = n, []string{name}
		case n == best:
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		return names[:min(3, len(names))]
	}
	// A field of the spec, but under another mapping.
	all := map[string]bool{}
	paths(reflect.TypeFor[specType](), "", all)
	for p := range all {
		if p[strings.LastIndexByte(p, '.')+1:] == key && p != join(path, key) {
			names = append(names, p)
		}
	}
	slices.Sort(names)
	if full, ok := elsewhere[key]; ok && len(names) == 0 {
		names = []string{full}
	}
	return names
}

// paths collects the path of every field below t.
func paths(t reflect.Type, path string, into map[string]bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		p := join(path, jsonName(t.Field(i)))
		into[p] = true
		paths(t.Field(i).Type, p, into)
	}
}

// fieldNames lists the JSON names of a struct's fields, in the order of the type.
func fieldNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = jsonName(t.Field(i))
	}
	return names
}

// fieldIndex finds a field by its JSON name.
func fieldIndex(t reflect.Type, name string) (int, bool) {
	i := slices.Index(fieldNames(t), name)
	return i, i >= 0
}

// jsonName is the name of a field in its JSON tag.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// distance is the number of letters to insert, delete, replace or swap with the next that
// turns a into b (optimal string alignment). It keeps three rows of the table: a swap
// looks back two rows.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

func andList(names []string) string { return conjunction(names, "and") }
func orList(names []string) string  { return conjunction(names, "or") }

// conjunction joins names as in "a, b and c".
func conjunction(names []string, word string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " " + word + " " + names[len(names)-1]
}
