use super::*;

#[test]
fn every_index_runs_exactly_once_for_any_thread_count() {
    for threads in [1, 2, 3, 8] {
        for count in [0, 1, 2, 7, 1000] {
            let runs: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..20 {
                parallel_for(threads, count, |i| {
                    runs[i].fetch_add(1, Relaxed);
                });
            }
            assert!(runs.iter().all(|n| n.load(Relaxed) == 20), "{threads} threads, {count} tasks");
        }
    }
}

#[test]
fn ranges_run_every_index_exactly_once_too() {
    for threads in [1, 2, 3, 8, 100] {
        for count in [0, 1, 2, 7, 1000] {
            let runs: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..10 {
                parallel_ranges(threads, count, |i| {
                    runs[i].fetch_add(1, Relaxed);
                });
                parallel_for(2, 3, |_| ());
            }
            assert!(runs.iter().all(|n| n.load(Relaxed) == 10), "{threads} threads, {count} tasks");
        }
    }
}

#[test]
fn a_task_may_start_parallel_work_itself() {
    let sum = AtomicUsize::new(0);
    parallel_for(4, 10, |i| {
        parallel_for(4, 10, |j| {
            sum.fetch_add(i * 10 + j, Relaxed);
        });
    });
    assert_eq!(sum.load(Relaxed), 4950);
}

#[test]
fn callers_on_several_threads_do_not_mix() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..500 {
                    let sum = AtomicUsize::new(0);
                    parallel_for(3, 16, |i| {
                        sum.fetch_add(i + round, Relaxed);
                    });
                    assert_eq!(sum.load(Relaxed), 120 + 16 * round);
                }
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let finished = AtomicUsize::new(0);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        parallel_for(2, 50, |i| {
            assert!(i != 17, "planted");
            finished.fetch_add(1, Relaxed);
        });
    }));
    assert!(outcome.is_err());
    // While a test beside this one has the pool, the caller runs all tasks itself, and none behind the panic.
    let done = finished.load(Relaxed);
    assert!(done == 49 || done == 17, "{done}");
    parallel_for(2, 50, |_| {
        finished.fetch_add(1, Relaxed);
    });
    assert_eq!(finished.load(Relaxed), done + 50);
}

#[test]
fn a_sleeping_pool_wakes_up() {
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(2));
        let sum = AtomicUsize::new(0);
        parallel_for(3, 64, |i| {
            sum.fetch_add(i, Relaxed);
        });
        assert_eq!(sum.load(Relaxed), 2016);
    }
}
