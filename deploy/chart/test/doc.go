// Package charttest tests the Helm chart of Berth's control plane without a cluster: by Helm's own linter, by the
// objects that the chart renders from some files of values (testdata/golden), and by decoding these objects strictly
// into the types of Kubernetes. It is a module of its own, so that Helm and Kubernetes stay out of the modules of
// Berth. Run it with make chart-test; go test -update writes the golden files.
//
// The main module compares the golden files with the programs (e2e/install, cmd/berthd).
package charttest
