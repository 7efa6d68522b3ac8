package spec_test

import (
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

func TestDataKeysTellContentAndTenantsApart(t *testing.T) {
	t.Parallel()
	code := berth.Address("sha256:" + strings.Repeat("0a", 32))
	data := berth.Address("sha256:" + strings.Repeat("0b", 32))
	bucket := spec.Input{From: "s3://bucket/data/", To: "/data"}
	there := bucket
	there.Endpoint = "https://elsewhere.example.com"
	s := spec.Job{Image: "python:3.12-slim", Workdir: string(code), Inputs: []spec.Input{
		{From: string(data), To: "/a"}, {From: string(data), To: "/b"}, bucket, there,
		{From: "job:" + someJob + "/model", To: "/c"},
	}}
	keys := s.DataKeys("one")
	want := []spec.DataKey{spec.ArchiveKey("one", code), spec.ArchiveKey("one", data), bucket.SourceKey("one"), there.SourceKey("one"), spec.ImageKey("one", s.Image)}
	if len(keys) != len(want) {
		t.Fatalf("keys %v, want %v", keys, want)
	}
	seen := map[spec.DataKey]bool{}
	for i, k := range append(keys, s.DataKeys("two")...) {
		if seen[k] || k == 0 {
			t.Errorf("key %d is %d again", i, k)
		}
		seen[k] = true
		if i < len(want) && k != want[i] {
			t.Errorf("key %d is %d, want %d", i, k, want[i])
		}
	}
	in, secret := bucket, bucket
	in.To, secret.Secret = "/elsewhere", "LOGIN"
	if in.SourceKey("one") != bucket.SourceKey("one") || secret.SourceKey("one") != bucket.SourceKey("one") {
		t.Error("where it is put, or by whose login it is read, makes it other content")
	}
	if spec.ImageKey("one", "a:1") == spec.ImageKey("one", "a:2") {
		t.Error("an image's name does not tell it apart")
	}
	if keys := (spec.Job{Workdir: "./src"}).DataKeys("one"); keys != nil {
		t.Errorf("a folder that was not sent has keys %v", keys)
	}
}

// Fetched inputs are reported under the key that jobs request.
func TestWhatIsFetchedFromElsewhereHasAKey(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"s3://bucket/set/", "gs://bucket/set/", "azblob://account/container/set/", "https://example.com/set"} {
		s := spec.Job{Inputs: []spec.Input{{From: from, To: "/data"}}}
		if got := s.DataKeys("red"); len(got) != 1 || got[0] != s.Inputs[0].SourceKey("red") || got[0] == s.Inputs[0].SourceKey("blue") {
			t.Errorf("%s has the keys %v", from, got)
		}
	}
}
