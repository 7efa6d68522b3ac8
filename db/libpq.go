package db

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// libpqSettings maps parameters of a connection string to the variables from which programs of
// PostgreSQL read them. Host, port, user, password and database are not among them.
var libpqSettings = map[string]string{
	"sslmode": "PGSSLMODE", "sslrootcert": "PGSSLROOTCERT", "sslcert": "PGSSLCERT", "sslkey": "PGSSLKEY",
	"target_session_attrs": "PGTARGETSESSIONATTRS", "connect_timeout": "PGCONNECT_TIMEOUT",
}

// LibpqEnv returns a connection string as environment variables for programs of PostgreSQL, such as
// pg_dump, so that no password is among their arguments, which other users of the host can read.
// Parameters that only Berth's driver knows are left out.
func LibpqEnv(database string) ([]string, error) {
	config, err := pgconn.ParseConfig(database)
	if err != nil {
		return nil, fmt.Errorf("database connection string: %w", err)
	}
	hosts, ports := []string{config.Host}, []string{fmt.Sprint(config.Port)}
	for _, f := range config.Fallbacks { // one more for each host, and for each host without TLS
		at := slices.IndexFunc(hosts, func(h string) bool { return h == f.Host })
		if at < 0 || ports[at] != fmt.Sprint(f.Port) {
			hosts, ports = append(hosts, f.Host), append(ports, fmt.Sprint(f.Port))
		}
	}
	env := []string{"PGHOST=" + strings.Join(hosts, ","), "PGPORT=" + strings.Join(ports, ","),
		"PGUSER=" + config.User, "PGDATABASE=" + config.Database}
	if config.Password != "" {
		env = append(env, "PGPASSWORD="+config.Password)
	}
	for name, value := range settingsOf(database) {
		if variable, ok := libpqSettings[name]; ok {
			env = append(env, variable+"="+value)
		}
	}
	// Sorted, since the order of a map is random: equal databases give equal environments.
	slices.Sort(env)
	return env, nil
}

// settingsOf returns the parameters of a valid connection string, in either of its two forms.
func settingsOf(database string) map[string]string {
	settings := map[string]string{}
	if u, err := url.Parse(database); err == nil && u.Scheme != "" {
		for name, values := range u.Query() {
			settings[name] = values[len(values)-1]
		}
		return settings
	}
	for rest := database; ; {
		name, after, ok := strings.Cut(rest, "=")
		if !ok {
			return settings
		}
		value, next := cutValue(strings.TrimLeft(after, " \t\n"))
		settings[strings.TrimSpace(name)] = value
		rest = next
	}
}

// cutValue cuts a value of the form keyword=value, which may be quoted, and returns the text after it.
func cutValue(text string) (value, rest string) {
	var b strings.Builder
	quoted := strings.HasPrefix(text, "'")
	if quoted {
		text = text[1:]
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && i+1 < len(text):
			i++
			b.WriteByte(text[i])
		case quoted && c == '\'', !quoted && strings.IndexByte(" \t\n", c) >= 0:
			return b.String(), text[i+1:]
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), ""
}
