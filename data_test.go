package berth_test

import (
	"strings"
	"testing"

	"berth"
)

func TestDataKeysTellContentAndTenantsApart(t *testing.T) {
	t.Parallel()
	code := berth.Address("sha256:" + strings.Repeat("0a", 32))
	data := berth.Address("sha256:" + strings.Repeat("0b", 32))
	bucket := berth.Input{From: "s3://bucket/data/", To: "/data"}
	there := bucket
	there.Endpoint = "https://elsewhere.example.com"
	s := berth.JobSpec{Image: "python:3.12-slim", Workdir: string(code), Inputs: []berth.Input{
		{From: string(data), To: "/a"}, {From: string(data), To: "/b"}, bucket, there,
		{From: "job:" + someJob + "/model", To: "/c"},
	}}
	keys := s.DataKeys("one")
	want := []berth.DataKey{berth.ArchiveKey("one", code), berth.ArchiveKey("one", data), bucket.SourceKey("one"), there.SourceKey("one"), berth.ImageKey("one", s.Image)}
	if len(keys) != len(want) {
		t.Fatalf("keys %v, want %v", keys, want)
	}
	seen := map[berth.DataKey]bool{}
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
	if berth.ImageKey("one", "a:1") == berth.ImageKey("one", "a:2") {
		t.Error("an image's name does not tell it apart")
	}
	if keys := (berth.JobSpec{Workdir: "./src"}).DataKeys("one"); keys != nil {
		t.Errorf("a folder that was not sent has keys %v", keys)
	}
}

func TestWhereDataIsIsToldToPeople(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]berth.DataAt{
		"m1 holds 12.0 GiB of it":                                 {Machine: "m1", Bytes: 12 << 30},
		"m2 holds 16.0 MiB of it, for which it would start there": {Machine: "m2", Bytes: 16 << 20, Chosen: true},
	} {
		if got := d.String(); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
}

// Fetched inputs are reported under the key that jobs request.
func TestWhatIsFetchedFromElsewhereHasAKey(t *testing.T) {
	t.Parallel()
	for _, from := range []string{"s3://bucket/set/", "gs://bucket/set/", "azblob://account/container/set/", "https://example.com/set"} {
		s := berth.JobSpec{Inputs: []berth.Input{{From: from, To: "/data"}}}
		if got := s.DataKeys("red"); len(got) != 1 || got[0] != s.Inputs[0].SourceKey("red") || got[0] == s.Inputs[0].SourceKey("blue") {
			t.Errorf("%s has the keys %v", from, got)
		}
	}
}
