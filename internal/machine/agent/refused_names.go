package agent

import (
	"fmt"
	"slices"
	"sync"
)

// maxRefusedNames bounds the names of a network that are reported: a program may ask for any number.
const maxRefusedNames = 20

// refusedNames are the names that containers have asked for although the lists of their jobs lack them, by the engine's
// name of their network. Each member of the network reports each name once. The zero value is empty. All methods may be
// called concurrently.
type refusedNames struct {
	mu       sync.Mutex
	names    map[string][]string
	watchers map[string]map[*func(string)]bool // of members
}

// add notes a refused name, and reports a new one to the members of the network.
func (r *refusedNames) add(network, name string) {
	r.mu.Lock()
	list := r.names[network]
	if slices.Contains(list, name) || len(list) >= maxRefusedNames {
		r.mu.Unlock()
		return
	}
	if r.names == nil {
		r.names = map[string][]string{}
	}
	r.names[network] = append(list, name)
	last := len(list)+1 == maxRefusedNames
	var warn []func(string)
	for w := range r.watchers[network] {
		warn = append(warn, *w)
	}
	r.mu.Unlock()
	for _, w := range warn {
		w(refusedText(name, last))
	}
}

// refusedText is the warning about a name.
func refusedText(name string, last bool) string {
	text := fmt.Sprintf("asked for %s, which network.allow does not list: the name is not resolved", name)
	if last {
		text += " (further names are not reported)"
	}
	return text
}

// watch calls warn for each name that is refused on a network, the known ones included, until stop is called.
func (r *refusedNames) watch(network string, warn func(string)) (stop func()) {
	w := &warn
	r.mu.Lock()
	if r.watchers == nil {
		r.watchers = map[string]map[*func(string)]bool{}
	}
	if r.watchers[network] == nil {
		r.watchers[network] = map[*func(string)]bool{}
	}
	r.watchers[network][w] = true
	known := slices.Clone(r.names[network])
	r.mu.Unlock()
	for i, name := range known {
		warn(refusedText(name, i+1 == maxRefusedNames))
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if delete(r.watchers[network], w); len(r.watchers[network]) == 0 {
			delete(r.watchers, network)
		}
	}
}

// forget drops the names of a network that is gone.
func (r *refusedNames) forget(network string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, network)
}
