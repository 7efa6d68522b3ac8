package offers_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/offers"
)

func TestOffersOfAProvider(t *testing.T) {
	t.Parallel()
	file := offers.Header + "\n" +
		"# example values, no prices of a cloud\n" +
		"ec2,eu-test-1,eu-test-1a,gpu.8x,spot,192,2097152,8,H100,12.5,example value,2026-11-26\n" +
		"rack,berlin,,plain,on_demand,64,512000,0,,,\"example, unknown\",2026-01-02\n" +
		"ec2,eu-test-2,,plain,on_demand,64,512000,0,,1,example value,2026-01-02\n"
	all, err := offers.Read(strings.NewReader(file), "ec2")
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	want := cloud.Offer{
		Offering: cloud.Offering{Region: "eu-test-1", Zone: "eu-test-1a", Type: "gpu.8x", Market: cloud.Spot},
		CPUs:     192, MemoryMiB: 2097152, GPUs: 8, GPUType: "H100", Price: 12.5, Source: "example value",
		AsOf: time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC),
	}
	if all[0] != want {
		t.Errorf("got %+v\nwant %+v", all[0], want)
	}
	if some := offers.In(all, []string{"eu-test-2"}); len(some) != 1 || some[0].Region != "eu-test-2" {
		t.Errorf("offers of one region: %+v", some)
	}
	if some := offers.In(all, nil); len(some) != 2 {
		t.Errorf("offers of all regions: %+v", some)
	}
	if rack, err := offers.Read(strings.NewReader(file), "rack"); err != nil || len(rack) != 1 || rack[0].Price != 0 {
		t.Errorf("an offer without a price: %+v, %v", rack, err)
	}
}

// The error names every bad line, and every bad column of a line.
func TestBadLinesAreNamed(t *testing.T) {
	t.Parallel()
	const good = "ec2,r,z,t,spot,1,1,0,,1,s,2026-01-02\n"
	for _, c := range []struct {
		file string
		want []string
	}{
		{"", []string{"the file is empty"}},
		{"a,b\n", []string{`the first line is "a,b"`}},
		{strings.ToUpper(offers.Header) + "\n", []string{"the first line is"}},
		{offers.Header + "\n" + good + "ec2,r\n" + strings.Replace(good, "spot", "cheap", 1), []string{"line 3", "wrong number of fields", `line 4: market "cheap": allowed is on_demand or spot`}},
		{offers.Header + "\n" + good + good, []string{"line 3: r/z/t/spot of provider ec2 is in line 2 already"}},
		{offers.Header + "\n,,,,spot,0,x,-1,,0,,02.01.2026\n", []string{
			`line 2: provider "": allowed`, `region "": allowed`, `type "": allowed`, `source "": allowed`,
			`cpus "0": allowed is a number from 1 on`, `memory_mib "x"`, `gpus "-1": allowed is a number from 0 on`,
			`price_per_hour "0"`, `as_of "02.01.2026": allowed is a date`,
		}},
		{offers.Header + "\nec2,r,z,t,spot,1,1,1,,NaN,s,2026-01-02\n", []string{`gpu_type "": allowed is a type`, `price_per_hour "NaN"`}},
		{offers.Header + "\nec2,r,z,t,spot,99999999999999999999,1,0,,1,s,2026-01-02\n", []string{`cpus "99999999999999999999"`}},
		{offers.Header + "\nec2,\"r,z\n", []string{"line 2"}},
		{offers.Header + "\n" + strings.Repeat("other,r\n", 1000), []string{"line 21"}},
	} {
		_, err := offers.Read(strings.NewReader(c.file), "ec2")
		if err == nil {
			t.Errorf("%q is accepted", c.file[:min(len(c.file), 300)])
			continue
		}
		for _, text := range c.want {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("error %v\nlacks %q", err, text)
			}
		}
		if lines := strings.Count(err.Error(), "\n"); lines > 30 {
			t.Errorf("the error has %d lines", lines)
		}
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "offers.csv")
	if _, err := offers.Load(path, "ec2"); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := offers.Load(path, "ec2"); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a bad file: %v", err)
	}
}

func FuzzOffers(f *testing.F) {
	f.Add(offers.Header + "\nec2,r,z,t,spot,1,1,0,,1,s,2026-01-02\n")
	f.Add(offers.Header + "\nec2,\"r\",z,t,spot,1,1,8,H100,,s,2026-01-02")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := offers.Read(strings.NewReader(text), "ec2")
		if err != nil {
			return
		}
		for _, o := range all {
			if o.Region == "" || o.Type == "" || o.CPUs < 1 || o.MemoryMiB < 1 || o.GPUs < 0 || o.Price < 0 || o.AsOf.IsZero() {
				t.Errorf("accepted %+v", o)
			}
		}
	})
}
