package calendar_test

import (
	"fmt"
	"time"

	"berth/internal/control/calendar"
	"berth/spec"
)

// A cron line fires by the clock of its zone: summer time moves the UTC hour.
func ExampleCalendar_Upcoming() {
	c, fault := calendar.Read(spec.Schedule{Cron: "30 3 * * *", TimeZone: "Europe/Berlin"}.WithDefaults())
	if fault != nil {
		fmt.Println(fault.Detail)
		return
	}
	for _, at := range c.Upcoming(time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC), 2) {
		fmt.Println(at.Format(time.RFC3339))
	}
	// Output:
	// 2026-03-28T02:30:00Z
	// 2026-03-29T01:30:00Z
}
