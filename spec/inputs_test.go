package spec_test

import (
	"fmt"
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

const someJob = "0190b5a0-0000-7000-8000-000000000001"

func TestInputsAreValidated(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		in   spec.Input
		want string // of the only fault; "" for none
	}{
		{spec.Input{From: "./data", To: "/data"}, ""},
		{spec.Input{From: "job:" + someJob + "/model", To: "/data"}, ""},
		{spec.Input{From: "s3://bucket/", To: "/data"}, ""},
		{spec.Input{From: "s3://bucket/a b/ü?#%2e/", To: "/data", Secret: "S3", Region: "eu-west-1", Endpoint: "http://10.0.0.1:9000/"}, ""},
		{spec.Input{From: "gs://bucket/", To: "/data", Endpoint: "http://storage.example.com"}, ""},
		{spec.Input{From: "gs://bucket/", To: "/data", Secret: "GS", Endpoint: "http://127.0.0.1:4443"}, ""},
		{spec.Input{From: "azblob://account1/container/", To: "/data", Secret: "SAS", Endpoint: "http://[fd00::1]:10000/account1"}, ""},
		{spec.Input{From: "s3://my.bucket/file.bin", To: "/data/file.bin"}, ""},
		{spec.Input{From: "gs://my_bucket.example.com/", To: "/data"}, ""},
		{spec.Input{From: "gs://bucket/a b/ü?#%2e", To: "/data/a", Secret: "GS", Endpoint: "https://storage.me-central2.rep.googleapis.com"}, ""},
		{spec.Input{From: "azblob://account1/container/", To: "/data", Secret: "SAS"}, ""},
		{spec.Input{From: "azblob://account1/$web/a/b", To: "/data/b", Endpoint: "https://account1.blob.core.usgovcloudapi.net"}, ""},
		{spec.Input{From: "azblob://account1/container/a", To: "/data/a", Endpoint: "http://10.0.0.1:10000/account1/"}, ""},
		{spec.Input{From: "file:///datasets/imagenet/train/", To: "/data"}, ""},
		{spec.Input{From: "file:///Data_2.1/a b/ü?#%.bin", To: "/data/a"}, ""},
		{spec.Input{From: "file:///datasets/", To: "/data"}, ""},
		{spec.Input{From: "https://example.com/a?b=c", To: "/data/a", SHA256: strings.Repeat("ab", 32), Secret: "TOKEN"}, ""},

		{spec.Input{From: "", To: "/data"}, "inputs[0].from: is empty, too long, or has control characters"},
		{spec.Input{From: "s3://bucket/a\x00b", To: "/data"}, "inputs[0].from: is empty, too long, or has control characters"},
		{spec.Input{From: "GS://bucket/", To: "/data"}, "inputs[0].from: GS:// is not supported by this version"},
		{spec.Input{From: "gcs://bucket/", To: "/data"}, "inputs[0].from: gcs:// is not supported by this version"},
		{spec.Input{From: "file:///etc/passwd", To: "/data"}, `inputs[0].from: "file:///etc/passwd": /etc is a system folder and cannot be shared with jobs`},
		{spec.Input{From: "file://", To: "/data"}, `inputs[0].from: "file://": the folder is missing`},
		{spec.Input{From: "file:///", To: "/data"}, `inputs[0].from: "file:///": "/" is not a valid name of a folder (allowed: a / and 1 to 48 of a-z, A-Z, 0-9, '-', '_' and '.', starting with a letter or a digit)`},
		{spec.Input{From: "file://nfs/datasets/", To: "/data"}, `inputs[0].from: "file://nfs/datasets/": a host is not allowed, since each machine reads its own files`},
		{spec.Input{From: "file://localhost/datasets/", To: "/data"}, `inputs[0].from: "file://localhost/datasets/": a host is not allowed, since each machine reads its own files`},
		{spec.Input{From: "file:///datasets", To: "/data"}, `inputs[0].from: "file:///datasets": /datasets is a folder, so the address must end with a /`},
		{spec.Input{From: "file:///../etc/passwd", To: "/data"}, `inputs[0].from: "file:///../etc/passwd": "/.." is not a valid name of a folder (allowed: a / and 1 to 48 of a-z, A-Z, 0-9, '-', '_' and '.', starting with a letter or a digit)`},
		{spec.Input{From: "file:///datasets/../etc/passwd", To: "/data"}, `inputs[0].from: "file:///datasets/../etc/passwd": the path contains ".."`},
		{spec.Input{From: "file:///datasets/a/..", To: "/data"}, `inputs[0].from: "file:///datasets/a/..": the path contains ".."`},
		{spec.Input{From: "file:///datasets/./a", To: "/data"}, `inputs[0].from: "file:///datasets/./a": the path contains "."`},
		{spec.Input{From: "file:///datasets//a", To: "/data"}, `inputs[0].from: "file:///datasets//a": the path contains ""`},
		{spec.Input{From: "file:///datasets/a//", To: "/data"}, `inputs[0].from: "file:///datasets/a//": the path contains ""`},
		{spec.Input{From: "file:///datasets/%2e%2E/a", To: "/data"}, `inputs[0].from: "file:///datasets/%2e%2E/a": "%2e%2E" contains an escape; write names without escapes`},
		{spec.Input{From: `file:///datasets/..\a`, To: "/data"}, `inputs[0].from: "file:///datasets/..\\a": "..\\a" contains an escape; write names without escapes`},
		{spec.Input{From: "file:///datasets/a\x00b", To: "/data"}, "inputs[0].from: is empty, too long, or has control characters"},
		{spec.Input{From: "file:///datasets/" + strings.Repeat("x", 256), To: "/data"}, `inputs[0].from: "file:///datasets/` + strings.Repeat("x", 183) + `": a part of the path has 256 bytes (allowed: at most 255)`},
		{spec.Input{From: "file:///datasets/a", To: "/data", Secret: "S3"}, "inputs[0].secret: is not available for this kind of input"},
		{spec.Input{From: "file:///datasets/a", To: "/data", Endpoint: "https://host"}, "inputs[0].endpoint: is not available for this kind of input"},
		{spec.Input{From: "file:///datasets/a", To: "/data", Region: "eu-west-1"}, "inputs[0].region: is not available for this kind of input"},
		{spec.Input{From: "file:///datasets/a", To: "/data", SHA256: strings.Repeat("ab", 32)}, "inputs[0].sha256: is not available for this kind of input"},
		{spec.Input{From: "file:///datasets/a/", To: "/data", Mode: "copy"}, ""},
		{spec.Input{From: "file:///datasets/a", To: "/data", Mode: "copy"}, ""},
		{spec.Input{From: "file:///datasets/a/", To: "/data", Mode: "mount"}, ""},
		{spec.Input{From: "file:///datasets/", To: "/data", Mode: "mount"}, ""},
		{spec.Input{From: "file:///datasets/a", To: "/data", Mode: "mount"}, "inputs[0].mode: a single file cannot be mounted"},
		{spec.Input{From: "file:///datasets/a/", To: "/data", Mode: "bind"}, `inputs[0].mode: "bind" is not known`},
		{spec.Input{From: "s3://bucket/", To: "/data", Mode: "mount"}, "inputs[0].mode: is not available for this kind of input"},
		{spec.Input{From: "s3://bucket/", To: "/data", Mode: "copy"}, "inputs[0].mode: is not available for this kind of input"},
		{spec.Input{From: "./data", To: "/data", Mode: "mount"}, "inputs[0].mode: is not available for this kind of input"},
		{spec.Input{From: "FILE:///datasets/", To: "/data"}, "inputs[0].from: FILE:// is not supported by this version"},
		{spec.Input{From: "http://example.com/a", To: "/data"}, "inputs[0].from: http:// is not supported by this version"},
		{spec.Input{From: "HTTPS://example.com/a", To: "/data"}, "inputs[0].from: HTTPS:// is not supported by this version"},
		{spec.Input{From: "gopher://example.com/", To: "/data"}, "inputs[0].from: gopher:// is not supported by this version"},
		{spec.Input{From: "https://me:pw@example.com/a", To: "/data"}, "inputs[0].from: is not the URL of a file, or has a login or a fragment"},
		{spec.Input{From: "https:///a", To: "/data"}, "inputs[0].from: is not the URL of a file, or has a login or a fragment"},
		{spec.Input{From: "s3://bucket", To: "/data"}, `inputs[0].from: "s3://bucket": a whole bucket must end with a /`},
		{spec.Input{From: "s3://B/x", To: "/data"}, `inputs[0].from: "s3://B/x": a bucket's name has 3 to 63 of a-z, 0-9, '-' and '.'`},
		{spec.Input{From: "s3://../../x", To: "/data"}, `inputs[0].from: "s3://../../x": a bucket's name has 3 to 63 of a-z, 0-9, '-' and '.'`},
		{spec.Input{From: "gs://bucket", To: "/data"}, `inputs[0].from: "gs://bucket": a whole bucket must end with a /`},
		{spec.Input{From: "gs://B/x", To: "/data"}, `inputs[0].from: "gs://B/x": a bucket's name has 3 to 222 of a-z, 0-9, '-', '_' and '.'`},
		{spec.Input{From: "gs://bucket/" + strings.Repeat("k", 1025), To: "/data"}, `inputs[0].from: "gs://bucket/` + strings.Repeat("k", 188) + `": a key has at most 1024 bytes, and only characters that Azure allows`},
		{spec.Input{From: "gs://bucket/", To: "/data", Region: "eu-west-1"}, "inputs[0].region: is not available for this kind of input"},
		{spec.Input{From: "gs://bucket/x", To: "/data", SHA256: strings.Repeat("ab", 32)}, "inputs[0].sha256: is not available for this kind of input"},
		{spec.Input{From: "gs://bucket/x", To: "/data", Endpoint: "https://host/bucket"}, `inputs[0].endpoint: "https://host/bucket" is not the URL of a server`},
		{spec.Input{From: "azblob://account1/container", To: "/data"}, `inputs[0].from: "azblob://account1/container": a whole bucket must end with a /`},
		{spec.Input{From: "azblob://container/", To: "/data"}, `inputs[0].from: "azblob://container/": a container's name has 3 to 63 of a-z, 0-9 and '-', and follows the account`},
		{spec.Input{From: "azblob://my-account/container/x", To: "/data"}, `inputs[0].from: "azblob://my-account/container/x": an account's name has 3 to 24 of a-z and 0-9`},
		{spec.Input{From: "azblob://169.254.169.254/container/x", To: "/data"}, `inputs[0].from: "azblob://169.254.169.254/container/x": an account's name has 3 to 24 of a-z and 0-9`},
		{spec.Input{From: "azblob://account1/container/x", To: "/data", Endpoint: "https://host/account2"}, `inputs[0].endpoint: "https://host/account2" is not the URL of a server`},
		{spec.Input{From: "azblob://account1/container/x", To: "/data", Region: "x"}, "inputs[0].region: is not available for this kind of input"},
		{spec.Input{From: "job:train/model", To: "/data"}, `inputs[0].from: "train" is a step, but this job is not part of a pipeline`},
		{spec.Input{From: "job:" + someJob, To: "/data"}, `inputs[0].from: "job:` + someJob + `" is not an output of a job`},
		{spec.Input{From: "job:/model", To: "/data"}, `inputs[0].from: "job:/model" is not an output of a job`},
		{spec.Input{From: "job:" + someJob + "/a/b", To: "/data"}, `inputs[0].from: "job:` + someJob + `/a/b" is not an output of a job`},
		{spec.Input{From: "./data", To: "/data", Secret: "S3"}, "inputs[0].secret: is not available for this kind of input"},
		{spec.Input{From: "https://example.com/a", To: "/data", Region: "x"}, "inputs[0].region: is not available for this kind of input"},
		{spec.Input{From: "s3://bucket/", To: "/data", SHA256: strings.Repeat("ab", 32)}, "inputs[0].sha256: is not available for this kind of input"},
		{spec.Input{From: "https://example.com/a", To: "/data", SHA256: "abc"}, `inputs[0].sha256: "abc" is not a SHA-256 checksum`},
		{spec.Input{From: "s3://bucket/", To: "/data", Endpoint: "file:///x"}, `inputs[0].endpoint: "file:///x" is not the URL of a server`},
		{spec.Input{From: "s3://bucket/", To: "/data", Endpoint: "https://me:pw@host"}, `inputs[0].endpoint: "https://me:pw@host" is not the URL of a server`},
		{spec.Input{From: "s3://bucket/", To: "/data", Secret: "S3", Endpoint: "http://storage.example.com"}, `inputs[0].endpoint: "http://storage.example.com" would send the login over plain http`},
		{spec.Input{From: "gs://bucket/x", To: "/data", Secret: "GS", Endpoint: "http://8.8.8.8"}, `inputs[0].endpoint: "http://8.8.8.8" would send the login over plain http`},
		{spec.Input{From: "azblob://account1/container/x", To: "/data", Secret: "SAS", Endpoint: "http://localhost:10000/account1"}, `inputs[0].endpoint: "http://localhost:10000/account1" would send the login over plain http`},
		{spec.Input{From: "s3://bucket/", To: "/data", Secret: "S3", Endpoint: "http://[::ffff:8.8.8.8]:9000"}, `inputs[0].endpoint: "http://[::ffff:8.8.8.8]:9000" would send the login over plain http`},
		{spec.Input{From: "s3://bucket/", To: "/data", Region: "eu west"}, `inputs[0].region: "eu west" is not a region`},
		{spec.Input{From: "s3://bucket/", To: "/etc/x"}, `inputs[0].to: "/etc/x" cannot be the path of an input`},
	} {
		jobSpec := spec.Job{Name: "x", Image: "busybox", Inputs: []spec.Input{row.in}}.WithDefaults()
		var got []string
		for _, f := range jobSpec.Validate() {
			got = append(got, f.Field+": "+f.Detail)
		}
		if text := strings.Join(got, "; "); text != row.want {
			t.Errorf("%+v: got %q, want %q", row.in, text, row.want)
		}
		if in := row.in; in.Kind() != spec.InputFolder && len(jobSpec.Unsent()) > 0 {
			t.Errorf("%s counts as a folder to be sent", in.From)
		}
	}
}

func TestStepsTakeWhatStepsThatTheyNeedLeave(t *testing.T) {
	t.Parallel()
	takes := func(from string) spec.Pipeline {
		p := graph("a", "b: a", "c: b", "d")
		for _, key := range []string{"a", "d"} {
			s := p.Jobs[key]
			s.Outputs = []spec.Output{{Name: "model", Path: "/out"}}
			p.Jobs[key] = s
		}
		many := p.Jobs["b"]
		many.Array, many.Outputs = &spec.Array{Size: 2}, []spec.Output{{Name: "model", Path: "/out"}}
		p.Jobs["b"] = many
		c := p.Jobs["c"]
		c.Inputs = []spec.Input{{From: from, To: "/data"}}
		p.Jobs["c"] = c
		return p
	}
	for from, want := range map[string]string{
		"job:a/model":                  "", // through b
		"job:" + someJob + "/anything": "",
		"job:b/model":                  "jobs.c.inputs[0].from: b is an array; its elements have the outputs",
		"job:d/model":                  "jobs.c.inputs[0].from: c does not need d",
		"job:c/model":                  "jobs.c.inputs[0].from: c does not need c",
		"job:x/model":                  `jobs.c.inputs[0].from: there is no step "x"`,
		"job:a/log":                    `jobs.c.inputs[0].from: a has no output "log"`,
	} {
		var got []string
		for _, f := range takes(from).Validate() {
			got = append(got, f.Field+": "+f.Detail)
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("%s: got %q, want %q", from, text, want)
		}
	}
	rest := takes("job:a/model").Without(map[string]berth.JobID{"a": someJob, "b": someJob})
	if got := fmt.Sprint(rest.Jobs["c"].Inputs[0].From, rest.Jobs["c"].Needs, rest.Validate()); got != "job:"+someJob+"/model[] []" {
		t.Errorf("without a and b, c takes %s", got)
	}
}
