package web_test

import (
	"encoding/csv"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"berth/spec"
)

// spending is a site whose tenants have costs in January 2026: 20 of a itself, 50 of a.vision below it, 7 of b, and 3 of
// machines that an admin launched, with a limit of 100 for a.
func spending(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	if _, err := s.as("admin").CreateTenant(t.Context(), spec.NewTenant{ID: "vision", Parent: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.as("admin").SetBurst(t.Context(), "a", spec.Burst{Allow: []string{"lab/r"}, Spend: &spec.BurstSpend{Limit: 100, Period: spec.SpendMonth}}); err != nil {
		t.Fatal(err)
	}
	s.exec(`INSERT INTO spend (tenant, day, settled) VALUES ('a', '2026-01-10', 20000000), ('vision', '2026-01-11', 50500000),
		('b', '2026-01-31', 7000000), ('', '2026-01-01', 3000000), ('a', '2026-02-01', 999000000)`)
	return s
}

var tags = regexp.MustCompile(`<[^>]*>`)

// cells returns the texts of the rows of a page's table.
func cells(body string) (rows []string) {
	_, table, _ := strings.Cut(body, "<tbody>")
	table, _, _ = strings.Cut(table, "</tbody>")
	for _, row := range strings.Split(table, "</tr>") {
		if text := strings.Trim(tags.ReplaceAllString(strings.ReplaceAll(row, "</td>", "|"), ""), "\n "); text != "" {
			rows = append(rows, strings.ReplaceAll(text, "\u2003", ">"))
		}
	}
	return rows
}

func TestThePageOfCostsShowsTheTreeOnce(t *testing.T) {
	t.Parallel()
	s := spending(t)
	a := s.signedIn("admin").get("/usage?period=month&date=2026-01-15")
	want := []string{
		"a|0| $70.50|$20.00|$0.00| 70 % of $100.00||",
		">vision|0| $50.50|$50.50|$0.00|||",
		"b|0| $7.00|$7.00|$0.00|||",
		"(admin)|0| $3.00|$3.00|$0.00|||",
		"default|0| $0.00|$0.00|$0.00|||",
	}
	if got := cells(a.body); a.status != http.StatusOK || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%d, rows\n%s\nwant\n%s", a.status, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, want := range []string{"<dt>Costs</dt><dd>$80.50</dd>", "2026-01-01 to 2026-01-31", `href="/usage?date=2025-12-31&amp;period=month"`,
		`href="/usage?date=2026-02-01&amp;period=month"`, "berth usage --period month --date 2026-01-15"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("without %q:\n%s", want, a.body)
		}
	}
	if now := s.signedIn("admin").get("/usage"); strings.Contains(now.body, ">Later<") || !strings.Contains(now.body, ">Earlier<") {
		t.Error("the present period has a later one, or no earlier one")
	}
}

// A user sees the own tenant alone, and costs by pool contain those of all tenants.
func TestThePageOfCostsIsTheReadersOwn(t *testing.T) {
	t.Parallel()
	s := spending(t)
	for name, want := range map[string]string{"alice": "a|0| $70.50|$20.00|$0.00| 70 % of $100.00||", "bob": "b|0| $7.00|$7.00|$0.00|||"} {
		of := s.signedIn(name)
		if a := of.get("/usage?period=month&date=2026-01-15"); len(cells(a.body)) != 1 || cells(a.body)[0] != want || strings.Contains(a.body, "By pool") {
			t.Errorf("%s sees %q", name, cells(a.body))
		}
		if a := of.get("/usage?by=pool"); a.status != http.StatusForbidden {
			t.Errorf("%s sees the costs of pools: %d", name, a.status)
		}
		if a := of.get("/usage.csv?by=pool"); a.status != http.StatusForbidden {
			t.Errorf("%s loads the costs of pools: %d", name, a.status)
		}
	}
}

func TestTheFileOfCostsHasTheNumbersOfTheAPI(t *testing.T) {
	t.Parallel()
	s := spending(t)
	a := s.signedIn("admin").get("/usage.csv?period=month&date=2026-01-15")
	rows, err := csv.NewReader(strings.NewReader(a.body)).ReadAll()
	if err != nil || !strings.HasPrefix(a.header.Get("Content-Type"), "text/csv") ||
		!strings.Contains(a.header.Get("Content-Disposition"), "attachment") {
		t.Fatalf("%v, %v", err, a.header)
	}
	var lines []string
	for _, r := range rows {
		lines = append(lines, strings.Join(r, ","))
	}
	want := "tenant,parent,pool,from,to,machines,reserved_usd,settled_usd,own_usd,limit_usd\n" +
		",,,2026-01-01,2026-01-31,0,0,3,3,\n" +
		"a,,,2026-01-01,2026-01-31,0,0,70.5,20,100\n" +
		"b,,,2026-01-01,2026-01-31,0,0,7,7,\n" +
		"default,,,2026-01-01,2026-01-31,0,0,0,0,\n" +
		"vision,a,,2026-01-01,2026-01-31,0,0,50.5,50.5,"
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if a := s.signedIn("admin").get("/usage.csv?date=yesterday"); a.status != http.StatusUnprocessableEntity {
		t.Errorf("a faulty date: %d", a.status)
	}
}

// The period of a date in the first or the last year of a calendar may end in a year that JSON cannot have.
func TestUsageRefusesDatesOfOtherEras(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := s.signedIn("alice")
	for _, path := range []string{"/usage?", "/usage.csv?"} {
		for _, q := range []string{"date=9999-12-31", "period=week&date=0000-01-01", "date=1999-12-31", "date=3000-01-01"} {
			if a := b.get(path + q); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "years 2000 to 2999") {
				t.Errorf("%s%s: %d %.600q", path, q, a.status, a.body)
			}
		}
		for _, q := range []string{"period=week&date=2000-01-01", "date=2999-12-31"} {
			if a := b.get(path + q); a.status != http.StatusOK {
				t.Errorf("%s%s: %d %.600q", path, q, a.status, a.body)
			}
		}
	}
	page := b.get("/usage?period=month&date=2000-01-01").body
	if strings.Contains(page, "1999-12-31") {
		t.Error("the page of the first month links to the month before")
	}
}
