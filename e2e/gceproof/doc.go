// Package gceproof compares gcefake, the model of Google Compute Engine (GCE) in Berth's tests, with a model that knows
// nothing of Berth: the instances of the in-memory GCE of github.com/GoogleCloudPlatform/k8s-cloud-provider, which
// Kubernetes uses in the tests of its own provider for GCE.
//
// The provider of package gce sends its calls through Google's SDK to gcefake. Each call that has a counterpart is
// repeated on the in-memory GCE, and both answers must agree. The types of Google's other client, on which the
// in-memory GCE is built, also read each request of the provider and each instance of gcefake, and refuse unknown
// fields.
//
// The in-memory GCE has no operations, no request ids, no numbers of instances, no time, no validation and no filters
// by label. TestTheInMemoryGCECannotJudge shows these limits, so a version that lifts one is noticed (adr/0104).
//
// It is a module of its own, so that the in-memory GCE stays out of the modules of Berth. Run it with
// make proof-gce-mock.
package gceproof
