# How this tree is built: a folder is a target. A library sees common/ (as "pg/pg.h"); a service sees
# common/ and its own folder and nothing else, so including another service's header does not compile.

# po_split(DIR ret_sources ret_tests): the folder's .c files, x_test.c apart.
function(po_split dir ret_sources ret_tests)
    file(GLOB sources CONFIGURE_DEPENDS ${dir}/*.c)
    file(GLOB tests CONFIGURE_DEPENDS ${dir}/*_test.c)
    if(tests)
        list(REMOVE_ITEM sources ${tests})
    endif()
    set(${ret_sources} ${sources} PARENT_SCOPE)
    set(${ret_tests} ${tests} PARENT_SCOPE)
endfunction()

# po_unit_tests(PREFIX LIB tests...): one program and one ctest entry per x_test.c, label `unit`.
function(po_unit_tests prefix lib)
    if(NOT BUILD_TESTING)
        return()
    endif()
    foreach(test ${ARGN})
        get_filename_component(stem ${test} NAME_WE)
        set(name ${prefix}_${stem})
        add_executable(${name} ${test})
        target_link_libraries(${name} PRIVATE ${lib} PkgConfig::cmocka)
        target_compile_definitions(${name} PRIVATE PO_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
        add_test(NAME ${name} COMMAND ${name})
        set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 300)
    endforeach()
endfunction()

# po_embed(TARGET PREFIX files...): each file's bytes become `const char PREFIX_STEM[]` (NUL ended) in a
# generated header PREFIX_files.h beside a table `PREFIX_files[]` of {name, text}, ordered by name.
function(po_embed target prefix)
    set(out ${CMAKE_CURRENT_BINARY_DIR}/${target}_embed/${prefix}_files.h)
    list(SORT ARGN)
    add_custom_command(
        OUTPUT ${out}
        COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DPREFIX=${prefix} "-DFILES=${ARGN}"
                -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
        DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
        VERBATIM)
    target_sources(${target} PRIVATE ${out})
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${target}_embed)
endfunction()

# po_setting_names(TARGET): the generated header setting_names.h, the variables of all settings of this tree.
function(po_setting_names target)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/common/*/*.[ch] ${CMAKE_SOURCE_DIR}/services/*/*.[ch])
    list(FILTER sources EXCLUDE REGEX "_test\\.c$")
    set(out ${CMAKE_CURRENT_BINARY_DIR}/${target}_names/setting_names.h)
    add_custom_command(
        OUTPUT ${out}
        COMMAND ${CMAKE_COMMAND} -DOUT=${out} "-DFILES=${sources}" -P ${CMAKE_SOURCE_DIR}/cmake/names.cmake
        DEPENDS ${sources} ${CMAKE_SOURCE_DIR}/cmake/names.cmake
        VERBATIM)
    target_sources(${target} PRIVATE ${out})
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${target}_names)
endfunction()

# po_room(NAME ROOM [libs...]): services/NAME/ROOM, a part of the service that links nothing but what is named
# here, so that it stays pure; its x_test.c files are unit tests of the whole service. Name its target, NAME_ROOM, among
# the libraries of po_service.
function(po_room name room)
    po_split(${CMAKE_CURRENT_SOURCE_DIR}/${room} sources tests)
    add_library(${name}_${room} STATIC ${sources})
    target_include_directories(${name}_${room} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
    target_link_libraries(${name}_${room} PUBLIC ${ARGN})
    po_unit_tests(${name}_${room} ${name}_parts ${tests})
endfunction()

# po_service(NAME [extra libs...]): services/NAME becomes payonce-NAME, its x_test.c files unit tests,
# and its migrations/*.sql are embedded as `migration_files`.
function(po_service name)
    po_split(${CMAKE_CURRENT_SOURCE_DIR} sources tests)
    set(main ${CMAKE_CURRENT_SOURCE_DIR}/main.c)
    list(REMOVE_ITEM sources ${main})
    file(GLOB migrations CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/migrations/*.sql)
    add_executable(payonce-${name} ${main})
    po_embed(payonce-${name} migration ${migrations})
    target_include_directories(payonce-${name} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
    if(sources)
        add_library(${name}_parts STATIC ${sources})
        target_include_directories(${name}_parts PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
        target_link_libraries(${name}_parts PUBLIC ${ARGN})
        target_link_libraries(payonce-${name} PRIVATE ${name}_parts)
        po_unit_tests(${name} ${name}_parts ${tests})
    elseif(tests)
        message(FATAL_ERROR "services/${name}: tests need a part beside main.c to test")
    else()
        target_link_libraries(payonce-${name} PRIVATE ${ARGN})
    endif()
endfunction()
